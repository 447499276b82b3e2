"""Ranks that are killed or stopped, data that is cut and disks that are full, in real runs: all ranks end within five
seconds with a code that is not zero and one cause line; no process and no shared memory is left."""
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import time
import unittest

import program

ENDLESS = [*program.TINY, "training.max_steps=1000000", "training.epochs=1000000", "logging.run_dir=run"]
STALL_SECONDS = 3


def shared_memory(pattern):
    return [path.name for path in pathlib.Path("/dev/shm").iterdir() if pattern.match(path.name)]


class Faults(program.ProgramTest):
    def long_run(self, *arguments, ranks):
        data = [] if any("dataset_path" in a for a in arguments) else [f"data.dataset_path={self.text()}"]
        process = self.start(*ENDLESS, *data, *arguments, ranks=ranks)
        metrics = self.folder / "run/metrics.jsonl"
        program.wait_until(lambda: process.poll() is not None or
                           metrics.exists() and metrics.read_text().count('"kind":"step"') >= 2)
        self.assertIsNone(process.poll(), "the run has begun")
        found = program.children(process.pid)
        self.assertEqual(len(found), ranks)
        self.shared = program.shared_memory_of(found[0])
        self.assertEqual(len(shared_memory(self.shared)), ranks, "ranks share memory, or the check would mean nothing")
        return process, found

    def check_ended(self, process, ranks, begin, seconds=5):
        done = self.finish(process, timeout=60)
        self.assertLess(time.monotonic() - begin, seconds, done)
        self.assertNotEqual(done.code, 0, done)
        program.wait_until(lambda: not any(pathlib.Path(f"/proc/{rank}").exists() for rank in ranks), 3)
        self.assertEqual(shared_memory(self.shared), [])
        return done

    @unittest.skipIf(b"__asan_init" in program.PROGRAM.read_bytes(),
                     "AddressSanitizer reserves terabytes of address space: it cannot start under a limit")
    def test_memory_that_is_not_there_ends_all_with_the_plan_and_the_way_out(self):
        def little_memory():
            resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))

        # 4,096 samples of 512 tokens: activations of some 10 GiB a rank.
        large = ["model.max_seq_len=512", "data.max_seq_len=512", "model.hidden_size=64", "training.batch_size=4096"]
        arguments = [*program.TINY, f"data.dataset_path={self.text(n_bytes=40000)}", "logging.run_dir=run", *large]
        done = subprocess.run(self.command(arguments, ranks=2), cwd=self.folder, env=self.environment, text=True,
                              capture_output=True, preexec_fn=little_memory, timeout=60)
        self.assertEqual(done.returncode, 70, done.stderr)
        causes = [line for line in done.stderr.splitlines() if line.startswith("error:")]
        self.assertEqual(len(causes), 1, done.stderr)
        self.assertRegex(causes[0], r"error: rank [01]: out of memory: [0-9.]+ MiB asked for, [0-9.]+ MiB of the [0-9.]+ MiB")
        for field in ("training.batch_size", "distributed.pp_n_microbatches", "numerics.accumulation", "amp_dtype"):
            self.assertIn(field, causes[0])
        self.assertRegex(done.stderr, r"activations, 1 microbatch in flight +[0-9.]+ MiB")

    def test_a_killed_rank_ends_all(self):
        for killed, n_ranks in ((0, 2), (1, 3)):
            with self.subTest(killed=killed):
                process, ranks = self.long_run(ranks=n_ranks)
                begin = time.monotonic()
                os.kill(ranks[killed], signal.SIGKILL)
                done = self.check_ended(process, ranks, begin)
                self.assertIn("signal 9", done.err + done.out)
                self.assertLessEqual(len(done.causes()), 1, done)
                os.rename(self.folder / "run", self.folder / f"run-{killed}")

    def test_a_stopped_rank_is_named_by_the_waits_of_the_others(self):
        process, ranks = self.long_run(f"distributed.collective_timeout_seconds={STALL_SECONDS}", ranks=3)
        begin = time.monotonic()
        os.kill(ranks[1], signal.SIGSTOP)
        done = self.check_ended(process, ranks, begin, STALL_SECONDS + 25)
        self.assertEqual(done.code, 70, done)
        self.assertEqual(len(done.causes()), 1, done)
        self.assertRegex(done.causes()[0], r"error: rank [02]: stalled: nothing has moved on any rank for \d\.\d s: stopped: "
                                           r"rank 1 is stopped by a signal; rank [02]'s .* waits for .*rank 1.*; the ranks' tables "
                                           r"are run/stall-rank-\*.txt$")
        # The rank that tells does not wait for ever for the others' tables.
        tables = list((self.folder / "run").glob("stall-rank-[02].txt"))
        self.assertGreater(len(tables), 0, done)
        for table in tables:
            self.assertIn("end of the stall table", table.read_text())
        logs = [(self.folder / f"run/logs/rank-{rank}.log").read_text() for rank in range(3)]
        for rank, log in enumerate(logs):
            self.assertRegex(log, rf"^\d+-\d\d-\d\d \d\d:\d\d:\d\d rank {rank} of 3, process \d+, cores ")
        self.assertEqual(sum(done.causes()[0] in log for log in logs), 1, logs)
        self.assertTrue(any("waits for" in logs[rank] for rank in (0, 2)), logs)
        waits = re.findall(r"^  (\S.*?) +waits for (.+?)\(([^)]*)\) from (.+) since ([0-9.]+) s$", done.err, re.M)
        self.assertTrue(any("gradient_reducer" in actor or "optimizer_shard" in actor for actor, *_ in waits), done)
        self.assertTrue(any("rank 1" in peer for *_, peer, _ in waits), done)

    def test_data_that_is_cut_during_a_run_is_named(self):
        for task, size in (("stream_lm", 4_000_000), ("lm", 4_000_000)):
            with self.subTest(task=task):
                data = self.text("data.txt", size)
                data.write_bytes(data.read_bytes()[:size])
                extra = ["--task", task, "data.steps_per_epoch=1000000", "data.shuffle_buffer=4",
                         "training.run_validation=false", f"data.dataset_path={data}"]
                process, ranks = self.long_run(*extra, ranks=2)
                cut = data if task == "stream_lm" else next((self.folder / "cache").rglob("*.bin"))
                begin = time.monotonic()
                os.truncate(cut, 100)
                done = self.check_ended(process, ranks, begin, 15)  # until the place is read
                self.assertEqual(done.code, 74, done)
                self.assertEqual(len(done.causes()), 1, done)
                self.assertRegex(done.causes()[0], rf"^error: rank [01]: .*{re.escape(cut.name)}.*bytes")
                os.unlink(data)
                os.rename(self.folder / "run", self.folder / f"run-{task}")

    def test_a_full_disk_is_named(self):
        disk = self.folder / "small disk"
        disk.mkdir()
        if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", disk],
                                               capture_output=True).returncode != 0:
            self.skipTest("a disk of 64 KiB can be made by root only")
        try:
            # 64 KiB hold the configuration and some hundred lines of metrics, and never the weights.
            for n_steps, name in ((1000000, "metrics.jsonl"), (2, "model.safetensors")):
                with self.subTest(file=name):
                    done = self.llm_train(*ENDLESS, f"data.dataset_path={self.text()}",
                                          f"training.max_steps={n_steps}", f"logging.run_dir={disk / name}", ranks=2)
                    self.assertEqual(done.code, 74, done)
                    self.assertEqual(len(done.causes()), 1, done)
                    self.assertRegex(done.causes()[0], rf"^error: rank 0: .*{name}.*No space left on device")
                    shutil.rmtree(disk / name)
        finally:
            # Ranks that MPI_Abort ended may still be leaving, with their folder in use, after mpirun has.
            program.wait_until(lambda: subprocess.run(["umount", disk], capture_output=True).returncode == 0)

    def test_a_run_folder_that_vanishes_is_named(self):
        process, ranks = self.long_run("training.max_steps=1500", "logging.progress=off", ranks=2)
        os.rename(self.folder / "run", self.folder / "moved")
        done = self.finish(process)
        self.assertEqual(done.code, 74, done)
        self.assertEqual(len(done.causes()), 1, done)
        self.assertIn("model.safetensors", done.causes()[0])
        self.assertIn("No such file", done.causes()[0])


if __name__ == "__main__":
    program.main()
