"""llm-doctor in real launches: what it reports, its JSON and its exit codes. No number of it is judged.
Usage: doctor_test.py PROGRAM ROOT DOCTOR"""
import json
import os
import pathlib
import subprocess
import sys

import program

DOCTOR = pathlib.Path(sys.argv.pop(3)).resolve()


class Doctor(program.ProgramTest):
    def doctor(self, *arguments, launcher=()):
        done = subprocess.run([*launcher, str(DOCTOR), *map(str, arguments)], cwd=self.folder, env=self.environment,
                              text=True, capture_output=True, timeout=120)
        return done

    def test_two_ranks_are_examined_and_nothing_is_left_behind(self):
        done = self.doctor("--json", launcher=[*program.MPIRUN, "-n", "2"])
        self.assertIn(done.returncode, (0, 70, 78), done.stderr)
        found = json.loads(done.stdout)
        self.assertEqual(found["launcher"], "mpirun")
        self.assertEqual(found["thread_level"], "funneled")
        self.assertIn("MPI", found["mpi"])
        self.assertEqual(len(found["ranks"]), 2)
        for rank in found["ranks"]:
            self.assertGreater(rank["f32_flops"], 0)
            self.assertGreater(rank["bf16_flops"], 0)
            self.assertGreaterEqual(len(rank["cores"]), 1)
        self.assertGreater(found["ranks"][0]["disk_bytes_per_second"], 0)
        self.assertEqual([pair["ranks"] for pair in found["pairs"]], [[0, 1]])
        self.assertEqual([reduce["bytes"] for reduce in found["all_reduces"]], [65536, 16777216])
        self.assertEqual({library["name"] for library in found["libraries"]}, {"libcuda.so.1", "libnccl.so.2"})
        kinds = {finding["kind"] for finding in found["findings"]}
        self.assertEqual(done.returncode, 78 if "launch" in kinds else 70 if kinds else 0)
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_ranks_on_one_core_are_a_wrong_launch(self):
        done = self.doctor(launcher=["taskset", "-c", str(min(os.sched_getaffinity(0))), *program.MPIRUN, "-n", "2"])
        self.assertEqual(done.returncode, 78, done.stdout + done.stderr)
        self.assertIn("wrong launch: ranks 0 and 1 of ", done.stdout)
        self.assertIn(" share 1 core; ", done.stdout)

    def test_a_process_of_its_own_is_examined(self):
        done = self.doctor()
        self.assertIn(done.returncode, (0, 70), done.stdout + done.stderr)
        self.assertIn("launcher: none; 1 rank on 1 node", done.stdout)

    def test_a_wrong_folder_or_word_is_refused(self):
        done = self.doctor("--folder", self.folder / "nowhere")
        self.assertEqual(done.returncode, 74, done.stderr)
        self.assertIn("nowhere", done.stderr)
        done = self.doctor("--disk")
        self.assertEqual(done.returncode, 64, done.stderr)
        self.assertIn("--help", done.stderr)


if __name__ == "__main__":
    program.main()
