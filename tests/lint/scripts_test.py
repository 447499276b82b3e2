"""What train.sh, test.sh and their helpers promise, in a copy of them with stand-ins for the programs they call."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

import tree

TOOLS = ["bash", "cat", "dirname", "id", "mkdir", "rm", "sed", "stty", "tail", "touch"]


class Scripts(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self.folder.name) / "tree with a blank"
        self.bin = pathlib.Path(self.folder.name) / "bin"
        self.bin.mkdir()
        shutil.copytree(tree.ROOT / "scripts", self.root / "scripts")
        shutil.copy(tree.ROOT / "train.sh", self.root)
        for tool in TOOLS:
            if path := shutil.which(tool):
                (self.bin / tool).symlink_to(path)

    def tearDown(self):
        self.folder.cleanup()

    def stand_in(self, path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)

    def everything_is_built(self):
        (self.root / "build").mkdir()
        (self.root / "build/build.ninja").touch()
        self.stand_in(self.root / "build/llm-train", "printf '[%s]' alone \"$@\"")
        self.stand_in(self.bin / "ninja", "exit 0")
        self.stand_in(self.bin / "mpirun", "printf '[%s]' \"$@\"; exit 65")

    def train(self, *arguments, cwd=None, **environment):
        return subprocess.run([shutil.which("bash"), str(self.root / "train.sh"), *arguments], cwd=cwd,
                              env={"PATH": str(self.bin), **environment}, capture_output=True, text=True,
                              stdin=subprocess.DEVNULL)

    def test_train_starts_two_ranks_of_the_quickstart_and_hands_on_arguments_and_status(self):
        self.everything_is_built()
        run = self.train("data.dataset_path=a b")
        self.assertTrue(run.stdout.endswith(
            "[-n][2][build/llm-train][--config-path][configs/quickstart.yaml][data.dataset_path=a b]"), run)
        self.assertEqual(run.returncode, 65)
        self.assertIn("[-n][3]", self.train(RANKS="3").stdout)

    def test_a_config_path_is_taken_from_where_the_user_stands(self):
        self.everything_is_built()
        mine = pathlib.Path(self.folder.name) / "mine.yaml"
        mine.touch()
        for arguments in (["--config-path", "mine.yaml"], ["--config-path=mine.yaml"]):
            out = self.train(*arguments, cwd=self.folder.name).stdout
            self.assertIn(str(mine), out)
            self.assertNotIn("quickstart", out)

    def test_a_plan_starts_no_ranks(self):
        self.everything_is_built()
        self.assertEqual(self.train("--plan").stdout, "[alone][--config-path][configs/quickstart.yaml][--plan]")

    def test_a_build_that_fails_is_said_and_trains_nothing(self):
        self.everything_is_built()
        self.stand_in(self.bin / "ninja", "echo the reason; exit 1")
        run = self.train()
        self.assertEqual((run.returncode, run.stdout), (70, ""))
        self.assertIn("the reason", run.stderr)

    def test_without_root_all_that_is_missing_is_listed_with_what_brings_it(self):
        run = self.train()
        self.assertEqual((run.returncode, run.stdout), (78, ""))
        table = (self.root / "scripts/packages.sh").read_text().split("packages_table='")[1].split("'")[0]
        for row in table.strip().splitlines():
            name, kind, _, way = row.split("|")
            self.assertEqual(f"  {name}: {way}\n" in run.stderr, kind != "full", row)
        wraps = {path.name for path in (tree.ROOT / "subprojects").glob("*.wrap")}
        self.assertEqual(wraps, set(re.findall(r"subprojects/(\S+?\.wrap)", run.stderr)))

    def test_what_only_the_full_run_needs_is_installed_for_it_alone(self):
        self.stand_in(self.bin / "dpkg-query", "for name in \"$@\"; do echo \"un |$name|\"; done")
        missing = [subprocess.run([shutil.which("bash"), "-c", f". scripts/packages.sh; packages_missing {full}"], cwd=self.root,
                                  env={"PATH": str(self.bin)}, capture_output=True, text=True).stdout.split()
                   for full in ("", "full")]
        self.assertNotIn("slurm-wlm", missing[0])
        self.assertLess(set(missing[0]), set(missing[1]))
        self.assertIn("slurm-wlm", missing[1])
        self.assertIn("meson", missing[0])

    def install(self, broken):
        """install_missing on a machine with nothing, whose apt-get cannot install the packages `broken`."""
        self.stand_in(self.bin / "dpkg-query", "for name in \"$@\"; do echo \"un |$name|\"; done")
        self.stand_in(self.bin / "apt-get", f'case "$*" in *install*\\ {broken}\\ *|*install*\\ {broken}) exit 100 ;; esac; '
                      f'echo "$@" >> {self.bin}/installed')
        self.stand_in(self.bin / "id", "echo 0")
        self.stand_in(self.bin / "env", 'shift; exec "$@"')
        for tool in ("mktemp", "sort"):
            (self.bin / tool).symlink_to(shutil.which(tool))
        return subprocess.run([shutil.which("bash"), "-c", ". scripts/packages.sh; install_missing build full; echo goes on"],
                              cwd=self.root, env={"PATH": str(self.bin)}, capture_output=True, text=True)

    def test_a_package_that_cannot_be_had_matters_where_the_build_needs_it(self):
        run = self.install("chromium")
        self.assertEqual((run.returncode, run.stdout), (0, "goes on\n"), run)
        self.assertIn("apt-get could not install: slurm-wlm munge chromium; the whole output is in ", run.stderr)
        self.assertTrue(run.stderr.endswith("Only some tests need these; they are skipped.\n"), run)
        self.assertIn("meson", (self.bin / "installed").read_text())

    def test_a_package_that_the_build_needs_and_cannot_be_had_ends_it(self):
        run = self.install("meson")
        self.assertEqual((run.returncode, run.stdout), (78, ""), run)
        self.assertIn("load or install what scripts/packages.sh lists", run.stderr)

    def count(self, status, *tests):
        log = pathlib.Path(self.folder.name) / "log.json"
        log.write_text("\n".join(json.dumps(test) for test in tests))
        run = subprocess.run(["python3", str(self.root / "scripts/count_tests.py"), f"run={log}={status}"],
                             capture_output=True, text=True, env=os.environ)
        return run.stdout.splitlines()[-1], run.returncode

    def test_counts_are_test_cases_and_a_bad_end_is_a_failure(self):
        cases = {"name": "a", "result": "OK", "stdout": "All tests passed (12 assertions in 3 test cases)\n" * 2}
        script = {"name": "b", "result": "OK", "stdout": ""}
        broken = {"name": "c", "result": "FAIL", "stdout": "test cases: 5 | 4 passed | 1 failed\n"}
        late = {"name": "d", "result": "TIMEOUT", "stdout": ""}
        absent = {"name": "e", "result": "SKIP", "stdout": "no such tool"}
        leaky = {"name": "f", "result": "FAIL", "stdout": "All tests passed (1 assertion in 1 test case)\n"}
        self.assertEqual(self.count(0, cases, script, absent), ("4 passed, 0 failed, 1 skipped", 0))
        self.assertEqual(self.count(1, cases, broken, late), ("7 passed, 2 failed, 0 skipped", 1))
        self.assertEqual(self.count(1, leaky), ("0 passed, 1 failed, 0 skipped", 1))
        self.assertEqual(self.count(1), ("0 passed, 1 failed, 0 skipped", 1))
        self.assertEqual(self.count(0, absent), ("0 passed, 0 failed, 1 skipped", 1))


if __name__ == "__main__":
    unittest.main()
