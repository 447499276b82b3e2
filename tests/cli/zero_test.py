"""ZeRO in real runs of 2, 3 and 4 ranks: the bits of data-parallel ranks, also inside of pipelines and where no send returns
before its receive."""
import os
import signal

import program

SYNC_SEND = os.environ["SYNC_SEND_SHIM"]
FIELDS = ["model.num_layers=4", "model.tie_embeddings=true", "model.dropout=0.1", "training.batch_size=4",
          "distributed.pp_n_microbatches=2", "training.val_interval_steps=3", "distributed.bucket_bytes=20000"]


def zero(stage):
    return ["distributed.parallel_strategy=zero", f"distributed.zero_stage={stage}"]


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
                for stage in (1, 2):
                    run = f"zero{stage}-{ranks}-{dtype}"
                    done = self.train(run, *FIELDS, *amp, *zero(stage), ranks=ranks)
                    self.check_same(run, ddp)
                    self.assertIn("sample:", done.out)

    def test_zero_runs_where_sends_are_synchronous(self):
        self.train("ddp", *FIELDS, ranks=3)
        self.train("zero", *FIELDS, *zero(1), ranks=3, preload=SYNC_SEND)
        self.check_same("zero", "ddp")

    def test_zero_inside_of_data_parallel_pipelines_has_their_bits(self):
        grid = ["distributed.parallel_strategy=pp", "distributed.pp_size=2"]
        self.train("pp", *FIELDS, *grid, ranks=4)
        for stage in (1, 2):
            self.train(f"zero{stage}", *FIELDS, *grid, f"distributed.zero_stage={stage}", ranks=4)
            self.check_same(f"zero{stage}", "pp")

    def test_one_rank_under_zero_gives_the_plain_runs_bits(self):
        self.train("plain", *FIELDS)
        self.train("zero", *FIELDS, *zero(1))
        self.check_same("zero", "plain")

    def test_a_rank_under_zero_that_is_told_to_stop_stops_all_and_saves(self):
        process = self.start(*program.TINY, f"data.dataset_path={self.text()}", *FIELDS, *zero(1),
                             "training.max_steps=1000000", "training.epochs=1000000", "logging.run_dir=run", ranks=3)
        metrics = self.folder / "run/metrics.jsonl"
        program.wait_until(lambda: process.poll() is not None or
                           metrics.exists() and metrics.read_text().count('"kind":"step"') >= 2)
        self.assertIsNone(process.poll(), "the run has begun")
        os.kill(program.children(process.pid)[1], signal.SIGUSR1)
        done = self.finish(process)
        self.assertEqual((done.code, done.causes()), (75, []), done)


if __name__ == "__main__":
    program.main()
