"""Mixtures whose experts are spread over ranks, in real runs: one rank's losses and weights within rounding, the same bits for every
pipeline and ZeRO stage around it, also where no send returns before its receive."""
import os

import program

SYNC_SEND = os.environ["SYNC_SEND_SHIM"]
FIELDS = ["model.num_heads=4", "model.num_kv_heads=2", "model.num_layers=4", "model.dropout=0.1", "model.vocab_size=257",
          "model.mlp_impl=moe", "model.num_experts=4", "model.top_k=2", "model.norm_impl=rms_norm", "model.use_glu=true",
          "model.mlp_activation=silu", "model.qkv_bias=false", "model.mlp_bias=false", "model.lm_head_bias=false",
          "model.tie_embeddings=true", "training.val_interval_steps=3", "optimization.use_amp=false"]
SPREAD = "distributed.expert_parallel=dp"


def batch(dp):
    """Eight samples a step in four microbatches, of as many data-parallel ranks."""
    return [f"training.batch_size={8 // dp}", f"distributed.pp_n_microbatches={4 // dp}"]


class Experts(program.ProgramTest):
    def test_spread_experts_train_as_on_one_rank_with_any_zero_and_pipeline_around_them(self):
        self.train("one", *FIELDS, *batch(1))
        for dp in (2, 4):
            self.train(f"dp{dp}", *FIELDS, *batch(dp), SPREAD, ranks=dp)
            self.check_near(f"dp{dp}", "one")
        self.train("zero", *FIELDS, *batch(2), SPREAD, "distributed.parallel_strategy=zero", "distributed.zero_stage=2", ranks=2)
        self.check_same("zero", "dp2")
        self.train("fsdp", *FIELDS, *batch(2), SPREAD, "distributed.parallel_strategy=fsdp", "distributed.fsdp_mixed_precision=fp32",
                   "distributed.fsdp_auto_wrap_min_params=4000", ranks=2)
        self.check_same("fsdp", "dp2")
        self.train("pp", *FIELDS, *batch(2), SPREAD, "distributed.parallel_strategy=pp", "distributed.pp_size=2",
                   "distributed.pp_schedule=zero_bubble", "optimization.gradient_checkpointing=block", ranks=4)
        self.check_same("pp", "dp2")
        self.train("3d", *FIELDS, *batch(2), SPREAD, "distributed.parallel_strategy=3d", "distributed.pp_size=2",
                   "distributed.tp_size=2", "distributed.zero_stage=3", ranks=8, timeout=120)
        self.check_near("3d", "one")
        start = f"model.init_from={self.folder / 'one'}"
        self.train("again", *FIELDS, *batch(1), start)
        self.train("again-dp2", *FIELDS, *batch(2), start, SPREAD, ranks=2)
        self.check_near("again-dp2", "again")

    def test_synchronous_sends_change_nothing(self):
        self.train("plain", *FIELDS, *batch(2), SPREAD, ranks=2)
        self.train("sync", *FIELDS, *batch(2), SPREAD, ranks=2, preload=SYNC_SEND)
        self.check_same("sync", "plain")

    def test_what_cannot_be_spread_is_refused_with_both_numbers(self):
        refused = {
            "distributed.expert_parallel: dp spreads model.num_experts 6 over 4 data-parallel x 1 tensor-parallel ranks = 4, which "
            "does not divide it; use a multiple of 4 experts, or expert_parallel: none": ["model.num_experts=6"],
            "dp, but model.mlp_impl mlp has 0 experts; write mlp_impl: moe, or expert_parallel: none":
                ["model.mlp_impl=mlp", "model.num_experts=0", "model.top_k=0"]}
        for text, fields in refused.items():
            done = self.llm_train(*program.TINY, *FIELDS, f"data.dataset_path={self.text()}", SPREAD, *fields, "--plan",
                                  "--ranks", 4)
            self.assertEqual(done.code, 78, done)
            self.assertIn(text, done.causes()[0])


if __name__ == "__main__":
    program.main()
