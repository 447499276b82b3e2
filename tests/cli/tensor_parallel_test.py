"""Tensor parallelism in real runs of 2 to 8 ranks: one rank's losses and weights within rounding, the same bits for every pipeline
and ZeRO stage around it, also where no send returns before its receive."""
import os

import program

SYNC_SEND = os.environ["SYNC_SEND_SHIM"]
FIELDS = ["model.num_heads=4", "model.num_kv_heads=2", "model.num_layers=4", "model.tie_embeddings=true", "model.dropout=0.1",
          "model.vocab_size=257", "training.batch_size=4", "distributed.pp_n_microbatches=2", "training.val_interval_steps=3",
          "optimization.use_amp=false"]


def grid(strategy, **sizes):
    return [f"distributed.parallel_strategy={strategy}", *[f"distributed.{name}={size}" for name, size in sizes.items()]]


class TensorParallel(program.ProgramTest):
    def test_two_and_four_ranks_train_as_one(self):
        self.train("one", *FIELDS)
        for ranks in (2, 4):
            done = self.train(f"tp{ranks}", *FIELDS, *grid("tp"), ranks=ranks)
            self.check_near(f"tp{ranks}", "one")
            self.assertIn("sample:", done.out)

    def test_synchronous_sends_change_nothing(self):
        for rows in ("false", "true"):
            fields = [*FIELDS, *grid("tp"), f"distributed.sequence_parallel={rows}"]
            self.train(f"plain-{rows}", *fields, ranks=2)
            self.train(f"sync-{rows}", *fields, ranks=2, preload=SYNC_SEND)
            self.check_same(f"sync-{rows}", f"plain-{rows}")
        self.check_near("plain-true", "plain-false")

    def test_a_grid_of_all_three_has_the_bits_of_its_data_and_tensor_parallel_part(self):
        self.train("one", *FIELDS, "training.batch_size=8", "distributed.pp_n_microbatches=4")
        self.train("flat", *FIELDS, *grid("tp", tp_size=2), ranks=4)
        self.check_near("flat", "one")
        cases = {"1f1b": ["distributed.zero_stage=1"], "zero_bubble": ["distributed.zero_stage=3",
                                                                       "distributed.fsdp_auto_wrap_min_params=4000"]}
        for schedule, zero in cases.items():
            self.train(schedule, *FIELDS, *grid("3d", pp_size=2, tp_size=2, pp_schedule=schedule), *zero, ranks=8, timeout=120)
            self.check_same(schedule, "flat")
        rows = [*FIELDS, "distributed.sequence_parallel=true"]
        self.train("rows", *rows, *grid("tp", tp_size=2), ranks=4)
        self.check_near("rows", "flat")
        self.train("rows-pp", *rows, *grid("3d", pp_size=2, tp_size=2, pp_schedule="zero_bubble"), *cases["zero_bubble"],
                   ranks=8, timeout=120)
        self.check_same("rows-pp", "rows")

    def test_experts_on_tensor_parallel_ranks_train_as_on_one(self):
        fields = [*FIELDS, "model.mlp_impl=moe", "model.num_experts=4", "model.top_k=2", "model.norm_impl=rms_norm",
                  "model.use_glu=true", "model.mlp_activation=silu", "model.qkv_bias=false", "model.mlp_bias=false",
                  "model.lm_head_bias=false", "training.batch_size=8", "distributed.pp_n_microbatches=4"]
        self.train("one", *fields)
        for ranks in (2, 4):
            self.train(f"tp{ranks}", *fields, *grid("tp"), ranks=ranks)
            self.check_near(f"tp{ranks}", "one")
        start = [f"model.init_from={self.folder / 'one'}"]
        self.train("again", *fields, *start)
        self.train("again-tp", *fields, *start, *grid("tp"), ranks=2)
        self.check_near("again-tp", "again")
        fields += ["training.batch_size=4", "distributed.pp_n_microbatches=2"]
        self.train("flat", *fields, *grid("tp", tp_size=2), ranks=4)
        self.check_near("flat", "one")
        self.train("3d", *fields, *grid("3d", pp_size=2, tp_size=2, zero_stage=1), ranks=8, timeout=120)
        self.check_same("3d", "flat")

    def test_what_does_not_divide_is_refused_with_both_numbers(self):
        moe = ["model.num_heads=4", "model.intermediate_size=130", "model.mlp_impl=moe", "model.top_k=2"]
        refused = {"distributed.tp_size: 4 does not divide model.num_experts 6; use a divisor of it": [*moe,
                                                                                                      "model.num_experts=6"],
                   "distributed.tp_size: 4 does not divide model.num_heads 2": ["model.num_heads=2"],
                   "distributed.tp_size: 4 does not divide model.intermediate_size 130": ["model.num_heads=4",
                                                                                          "model.intermediate_size=130"],
                   "distributed.tp_size: 4 is neither a divisor nor a multiple of model.num_kv_heads 6":
                       ["model.num_heads=12", "model.hidden_size=48", "model.num_kv_heads=6"]}
        for text, fields in refused.items():
            done = self.llm_train(*program.TINY, f"data.dataset_path={self.text()}", *fields, *grid("tp"), "--plan", "--ranks", 4)
            self.assertEqual(done.code, 78, done)
            self.assertIn(text, done.causes()[0])

    def test_a_group_over_several_nodes_is_warned_about(self):
        done = self.llm_train(*program.TINY, f"data.dataset_path={self.text()}", *grid("tp"), "--plan", "--ranks", 2,
                              "--ranks-per-node", 1)
        self.assertIn("warning: distributed.tp_size is 2, but nodes have 1 rank: ranks of different nodes wait", done.out)


if __name__ == "__main__":
    program.main()
