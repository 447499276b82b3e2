"""Pipelines in real runs of 2, 3 and 4 ranks: the bits of one rank by every schedule, also where no send returns before its
receive; a schedule of the user's; ranks that stop or die."""
import json
import os
import pathlib
import signal
import time

import program

SYNC_SEND = os.environ["SYNC_SEND_SHIM"]
SCHEDULES = {"gpipe": [], "1f1b": [], "interleaved": ["distributed.pp_virtual_stages=2"], "zero_bubble": [],
             "zero_bubble_v": []}
DEEP = ["model.num_layers=8", "training.batch_size=6", "distributed.pp_n_microbatches=4", "model.dropout=0.1",
        "model.tie_embeddings=true", "training.max_steps=4", "training.val_interval_steps=2"]


def by(schedule):
    return ["distributed.parallel_strategy=pp", f"distributed.pp_schedule={schedule}", *SCHEDULES[schedule]]


class Pipelines(program.ProgramTest):
    def test_every_schedule_on_two_three_and_four_ranks_has_one_ranks_bits(self):
        self.train("one", *DEEP)
        self.assertEqual(len(self.metrics("one", "validation")), 2)
        for schedule, ranks in [("gpipe", 2), ("1f1b", 3), ("interleaved", 4), ("zero_bubble", 3),
                                ("zero_bubble_v", 2), ("1f1b", 4)]:
            done = self.train(f"{schedule}-{ranks}", *DEEP, *by(schedule), ranks=ranks)
            self.check_same(f"{schedule}-{ranks}")
            self.assertIn("sample:", done.out)

    def test_every_schedule_runs_where_sends_are_synchronous(self):
        self.train("one", *DEEP)
        for schedule in SCHEDULES:
            self.train(schedule, *DEEP, *by(schedule), ranks=3, preload=SYNC_SEND)
            self.check_same(schedule)

    def test_tensors_above_the_eager_limit_move_where_sends_are_synchronous(self):
        wide = [*DEEP, "model.hidden_size=128", "training.max_steps=2"]  # 32 KiB of activations a sample
        self.train("one", *wide)
        for schedule in SCHEDULES:
            self.train(schedule, *wide, *by(schedule), ranks=2, preload=SYNC_SEND)
            self.check_same(schedule)

    def test_data_parallel_pipelines_have_the_bits_of_data_parallel_ranks(self):
        batch = ["training.batch_size=4", "distributed.pp_n_microbatches=2"]
        self.train("one", *DEEP, *batch, ranks=2)
        self.train("grid", *DEEP, *batch, *by("1f1b"), "distributed.pp_size=2", ranks=4)
        self.check_same("grid")

    def test_recomputation_low_precision_and_several_flushes_change_no_bit(self):
        for dtype in ("bfloat16", "float16"):
            flushes = [*DEEP, "optimization.gradient_accumulation_steps=2", "optimization.use_amp=true",
                       f"optimization.amp_dtype={dtype}"]
            self.train(f"one-{dtype}", *flushes)
            self.train(f"pp-{dtype}", *flushes, *by("zero_bubble"), "optimization.gradient_checkpointing=block", ranks=2)
            self.check_same(f"pp-{dtype}", f"one-{dtype}")

    def test_a_schedule_of_the_users_is_read_from_a_file(self):
        self.train("one", *DEEP)
        self.write("own.txt", "# as 1f1b, but rank 0 is one forward further\n"
                              "F0 F1 F2 B0 F3 B1 B2 B3\n"
                              "F0 B0 F1 B1 F2 B2 F3 B3\n")
        self.train("own", *DEEP, "distributed.parallel_strategy=pp", "distributed.pp_schedule=file:own.txt", ranks=2)
        self.check_same("own")

    def test_a_schedule_that_deadlocks_is_refused_before_any_rank_waits(self):
        self.write("own.txt", "F0 B0 F1 B1\nF1 F0 B0 B1\n")
        done = self.llm_train(*program.TINY, f"data.dataset_path={self.text()}", "distributed.parallel_strategy=pp",
                              "distributed.pp_n_microbatches=2", "distributed.pp_schedule=file:own.txt", ranks=2)
        self.assertEqual(done.code, 78, done)
        self.assertEqual(len(done.causes()), 1, done)
        self.assertIn("own.txt", done.causes()[0])

    def endless(self, ranks):
        process = self.start(*program.TINY, f"data.dataset_path={self.text()}", *DEEP, *by("1f1b"),
                             "training.max_steps=1000000", "training.epochs=1000000", "logging.run_dir=run", ranks=ranks)
        metrics = self.folder / "run/metrics.jsonl"
        program.wait_until(lambda: process.poll() is not None or
                           metrics.exists() and metrics.read_text().count('"kind":"step"') >= 2)
        self.assertIsNone(process.poll(), "the run has begun")
        return process, program.children(process.pid)

    def test_a_killed_rank_of_a_pipeline_ends_all(self):
        for victim in (0, 1, 2):
            process, ranks = self.endless(3)
            os.kill(ranks[victim], signal.SIGKILL)
            begin = time.monotonic()
            done = self.finish(process)
            self.assertLess(time.monotonic() - begin, 5, done)
            self.assertNotEqual(done.code, 0, done)
            program.wait_until(lambda: not any(pathlib.Path(f"/proc/{rank}").exists() for rank in ranks), 3)
            os.rename(self.folder / "run", self.folder / f"run-{victim}")

    def test_a_rank_of_a_pipeline_that_is_told_to_stop_stops_all_and_saves(self):
        process, ranks = self.endless(3)
        os.kill(ranks[1], signal.SIGUSR1)
        done = self.finish(process)
        self.assertEqual((done.code, done.causes()), (75, []), done)
        self.assertGreater(len(program.read_safetensors(self.weights("run"))), 8)

    def test_the_trace_shows_each_rank_computing_by_its_schedule(self):
        self.train("run", *DEEP, *by("1f1b"), "--trace", str(self.folder / "trace"), ranks=2)
        for rank, expected in ((0, "F0 F1 B0 F2 B1 F3 B2 B3"), (1, "F0 B0 F1 B1 F2 B2 F3 B3")):
            trace = json.loads((self.folder / f"trace/rank-{rank}.json").read_text())
            events = trace["traceEvents"] if isinstance(trace, dict) else trace
            slices = [e for e in events if e.get("cat") == "compute" and e["name"] in ("F", "B")]
            slices.sort(key=lambda e: e["ts"])
            order = [f"{e['name']}{e['args']['key']}" for e in slices]
            self.assertEqual(" ".join(order[:8]), expected)


if __name__ == "__main__":
    program.main()
