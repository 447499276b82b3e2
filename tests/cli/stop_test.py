"""A run that is asked to stop saves its weights and says so, with exit code 75 from whoever started it."""
import os
import signal

import program

LONG = [*program.TINY, "training.max_steps=1000000", "training.epochs=1000000", "logging.run_dir=run"]


class Stops(program.ProgramTest):
    def long_run(self, *arguments, ranks=0):
        process = self.start(*LONG, f"data.dataset_path={self.text()}", *arguments, ranks=ranks)
        program.wait_until(lambda: (self.folder / "run/metrics.jsonl").exists() and self.losses_so_far() >= 2)
        return process

    def losses_so_far(self):
        return (self.folder / "run/metrics.jsonl").read_text().count('"kind":"step"')

    def check_stopped(self, process):
        done = self.finish(process, timeout=20)
        self.assertEqual(done.code, 75, done)
        self.assertEqual(done.causes(), [], done)
        steps = self.metrics("run")
        self.assertEqual([line["step"] for line in steps], list(range(1, len(steps) + 1)))
        self.assertIn(f"stopped by a signal after {len(steps)} of 1000000 steps", done.out)
        self.assertEqual(len(program.read_safetensors(self.weights("run"))), 37)

    def test_the_launchers_signal_reaches_all_ranks(self):
        for ranks in (1, 2, 3):
            with self.subTest(ranks=ranks):
                process = self.long_run(ranks=ranks)
                os.kill(process.pid, signal.SIGUSR1)
                self.check_stopped(process)
                os.rename(self.folder / "run", self.folder / f"run-{ranks}")

    def test_one_rank_that_is_told_stops_all(self):
        process = self.long_run(ranks=3)
        os.kill(program.children(process.pid)[1], signal.SIGUSR1)
        self.check_stopped(process)

    def test_a_process_alone_stops_by_either_signal(self):
        for name in ("SIGUSR1", "SIGTERM"):
            with self.subTest(signal=name):
                process = self.long_run()
                os.kill(process.pid, getattr(signal, name))
                self.check_stopped(process)
                os.rename(self.folder / "run", self.folder / f"run-{name}")

    def test_the_weights_of_a_stopped_run_are_those_of_a_run_of_so_many_steps(self):
        constant = ["training.scheduler_type=constant"]
        process = self.long_run(*constant, ranks=2)
        os.kill(process.pid, signal.SIGUSR1)
        self.check_stopped(process)
        n_steps = len(self.metrics("run"))
        self.train("again", *constant, f"training.max_steps={n_steps}", "training.epochs=1000000")
        self.train("again-2", *constant, f"training.max_steps={n_steps}", "training.epochs=1000000", ranks=2)
        self.assertEqual(self.weights("again-2"), self.weights("run"))
        self.assertNotEqual(self.weights("again"), self.weights("run"), "one rank has another global batch")


if __name__ == "__main__":
    program.main()
