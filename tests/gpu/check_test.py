"""The check of a GPU on an emulated device: the bundle runs by itself, all its checks pass, and without a GPU it says so.
Usage: check_test.py SOURCE BUILD PROGRAM MODULE UNITY"""
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

SOURCE, BUILD, PROGRAM, MODULE = map(pathlib.Path, sys.argv[1:5])
UNITY = sys.argv[5]
# Nothing of this machine's setting. Sanitizers find memory that a process leaves to its end.
BARE = {"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": "", "ASAN_OPTIONS": "detect_leaks=0", "CUDA_HOME": "/nowhere"}
EMULATED = BARE | {"LLM_CUDA_MODULE": str(MODULE)}
C_LIBRARY = re.compile(r"linux-vdso|/ld-linux|lib(c|m|dl|rt|pthread|resolv|util)\.so")


def run(*command, env):
    return subprocess.run([str(part) for part in command], env=env, text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=170)


class Check(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.bundle = pathlib.Path(cls.folder.name) / "bundle with a blank"
        done = subprocess.run([SOURCE / "tests/gpu/bundle.sh", BUILD, cls.bundle], text=True, capture_output=True)
        assert done.returncode == 0, done

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @unittest.skipIf(UNITY == "on", "a library that is one object brings MPI with whatever is used of it; bundles are of builds without")
    def test_the_bundles_program_needs_nothing_else_of_a_machine_than_the_c_library(self):
        lines = run("ldd", self.bundle / "gpu_check", env=BARE).stdout.splitlines()
        others = [line for line in lines if not C_LIBRARY.search(line) and str(self.bundle) not in line]
        self.assertEqual(others, [])
        names = [line.split()[0] for line in lines]  # a folder may be called anything
        self.assertEqual([name for name in names if "mpi" in name], [])

    @unittest.skipIf(b"__asan_init" in PROGRAM.read_bytes(), "AddressSanitizer takes longer than check.sh gives its parts; its build runs "
                     "kernels and parity in tests of their own")
    def test_everything_passes_on_an_emulated_device_and_ends_with_a_table(self):
        done = run(self.bundle / "check.sh", self.bundle, "--small", env=EMULATED)
        self.assertEqual(done.returncode, 0, done.stdout)
        table = done.stdout.split("== in all")[1]
        for name in ("kernels", "parity", "speed", "train"):
            self.assertRegex(table, rf"(?m)^{name} +\d+ s  passed$")
        for name in ("memcheck", "racecheck", "PyTorch beside it"):
            self.assertRegex(table, rf"(?m)^{name} .*(skipped|passed)")
        self.assertRegex(table, r"(?m)^NCCL between ranks +skipped: needs two devices")
        for line in ("linear_backward_weight bf16, added: dweight", "gpt2 f32: weights", "adamw", "tiny Llama tokens"):
            self.assertIn(f"\n{line}", done.stdout)

    def test_a_figure_outside_its_limit_fails_the_check(self):
        bundle = pathlib.Path(self.folder.name) / "broken"
        bundle.mkdir()
        program = bundle / "gpu_check"
        program.write_text('#!/bin/bash\n[ "$1" != parity ]\n')
        program.chmod(0o755)
        (bundle / "torch_step.py").write_text("raise SystemExit(77)")
        done = run(self.bundle / "check.sh", bundle, env=BARE)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout, r"(?m)^parity +\d+ s  FAILED with exit code 1$")
        self.assertRegex(done.stdout, r"(?m)^PyTorch beside it +\d+ s  skipped$")

    @unittest.skipIf(pathlib.Path("/proc/driver/nvidia/version").exists(), "this machine has a driver")
    def test_without_a_driver_it_says_so_in_one_line(self):
        done = run(self.bundle / "check.sh", self.bundle, env=BARE)
        self.assertEqual(done.returncode, 77, done.stdout)
        self.assertRegex(done.stdout, r"\Agpu_check: no NVIDIA driver is here .*\n\Z")

    def test_a_check_that_is_not_there_is_refused(self):
        self.assertEqual(run(PROGRAM, "kernel", env=EMULATED).returncode, 64)
        self.assertEqual(run(self.bundle / "check.sh", self.folder.name, env=EMULATED).returncode, 64)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
