"""ZeRO in real runs of 2, 3 and 4 ranks: the bits of data-parallel ranks, also inside of pipelines and where no send returns
before its receive."""
import os
import signal

import program

SYNC_SEND = os.environ["SYNC_SEND_SHIM"]
FIELDS = ["model.num_layers=4", "model.tie_embeddings=true", "model.dropout=0.1", "training.batch_size=4",
          "distributed.pp_n_microbatches=2", "training.val_interval_steps=3", "distributed.bucket_bytes=20000"]


UNITS = ["distributed.fsdp_auto_wrap_min_params=12000"]  # a block of the tiny model has 12,704


def zero(stage):
    return ["distributed.parallel_strategy=zero", f"distributed.zero_stage={stage}", *(UNITS if stage == 3 else [])]


class Zero(program.ProgramTest):
    def check_same(self, run, expected):
        self.assertEqual(self.losses(run), self.losses(expected), run)
        self.assertEqual([line["loss"] for line in self.metrics(run, "validation")],
                         [line["loss"] for line in self.metrics(expected, "validation")])
        self.assertTrue(self.weights(run) == self.weights(expected), run)

    def test_every_stage_on_two_three_and_four_ranks_has_the_bits_of_ddp(self):
        for ranks in (2, 3, 4):
            for dtype in ("float32", "bfloat16"):
                amp = ["optimization.use_amp=true", f"optimization.amp_dtype={dtype}"]
                ddp = f"ddp-{ranks}-{dtype}"
                self.train(ddp, *FIELDS, *amp, ranks=ranks)
                for stage in (1, 2, 3):
                    run = f"zero{stage}-{ranks}-{dtype}"
                    done = self.train(run, *FIELDS, *amp, *zero(stage), ranks=ranks)
                    self.check_same(run, ddp)
                    self.assertIn("sample:", done.out)

    def test_zero_runs_where_sends_are_synchronous(self):
        self.train("ddp", *FIELDS, ranks=3)
        for stage in (1, 3):
            self.train(f"zero{stage}", *FIELDS, *zero(stage), ranks=3, preload=SYNC_SEND)
            self.check_same(f"zero{stage}", "ddp")

    def test_zero_inside_of_data_parallel_pipelines_has_their_bits(self):
        grid = ["distributed.parallel_strategy=pp", "distributed.pp_size=2"]
        self.train("pp", *FIELDS, *grid, ranks=4)
        for stage in (1, 2, 3):
            self.train(f"zero{stage}", *FIELDS, *grid, *UNITS, f"distributed.zero_stage={stage}", ranks=4)
            self.check_same(f"zero{stage}", "pp")

    def test_one_rank_under_zero_gives_the_plain_runs_bits(self):
        self.train("plain", *FIELDS)
        self.train("zero", *FIELDS, *zero(1))
        self.check_same("zero", "plain")

    def test_fsdp_has_the_bits_of_ddp_in_its_precision_whatever_its_units(self):
        fsdp = [*FIELDS, "distributed.parallel_strategy=fsdp"]
        amp = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
        for precision, dtype in amp.items():
            self.train(f"ddp-{precision}", *FIELDS, "optimization.use_amp=true", f"optimization.amp_dtype={dtype}", ranks=3)
            done = self.train(f"fsdp-{precision}", *fsdp, f"distributed.fsdp_mixed_precision={precision}", *UNITS, ranks=3)
            self.check_same(f"fsdp-{precision}", f"ddp-{precision}")
            name = {"fp32": "f32"}.get(precision, precision.replace("fp16", "f16"))
            self.assertIn(f"{name} (fsdp_mixed_precision, in place of amp_dtype)", done.out)
            self.assertIn("units: 5, the largest of 12704 parameters; 1 gathered ahead of use, given back after each use",
                          done.out)
        for name, knobs in {"one": ["fsdp_auto_wrap_min_params=0"], "kept": ["fsdp_reshard_after_forward=false"],
                            "late": ["fsdp_prefetch_units=0"], "early": ["fsdp_prefetch_units=3"]}.items():
            self.train(name, *fsdp, *UNITS, *[f"distributed.{knob}" for knob in knobs], ranks=3)
            self.check_same(name, "ddp-bf16")

    def test_fsdp_says_what_its_knobs_do(self):
        done = self.train("run", *FIELDS, "distributed.parallel_strategy=fsdp", "distributed.fsdp_cpu_offload=true",
                          "optimization.use_amp=true", "optimization.amp_dtype=float16", ranks=2)
        self.assertIn("fsdp_cpu_offload: parameters of ranks on CPUs are in host memory already; it changes nothing", done.out)
        self.assertIn("optimization.amp_dtype: has no effect under parallel_strategy: fsdp", done.out)
        self.assertRegex(done.err, r"warning: distributed.fsdp_auto_wrap_min_params is 10000000: one unit \(embedding, "
                                   r"blocks 0-3, final norm, head\) has .*; 12704 makes each block a unit")

    def test_a_rank_under_zero_that_is_told_to_stop_stops_all_and_saves(self):
        for stage in (1, 3):
            with self.subTest(stage=stage):
                self.check_stop(f"run{stage}", zero(stage))

    def check_stop(self, run, strategy):
        process = self.start(*program.TINY, f"data.dataset_path={self.text()}", *FIELDS, *strategy,
                             "training.max_steps=1000000", "training.epochs=1000000", f"logging.run_dir={run}", ranks=3)
        metrics = self.folder / run / "metrics.jsonl"
        program.wait_until(lambda: process.poll() is not None or
                           metrics.exists() and metrics.read_text().count('"kind":"step"') >= 2)
        self.assertIsNone(process.poll(), "the run has begun")
        os.kill(program.children(process.pid)[1], signal.SIGUSR1)
        done = self.finish(process)
        self.assertEqual((done.code, done.causes()), (75, []), done)


if __name__ == "__main__":
    program.main()
