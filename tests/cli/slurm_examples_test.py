"""The examples of configs/slurm are scripts whose options SLURM has and whose llm-train can run; the one that requeues does so
after a stop that saved, and after nothing else. srun and scontrol are stand-ins."""
import os
import re
import subprocess

import program

FOLDER = program.ROOT / "configs/slurm"
EXAMPLES = sorted(FOLDER.glob("*.sbatch"))
# Of sbatch, as its manual of 22.05 has them.
OPTIONS = {"job-name", "nodes", "ntasks-per-node", "cpus-per-task", "time", "signal", "requeue", "open-mode", "array"}
# Drops srun's own options and plans what is left for as many ranks as the job has; writes the options down.
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do echo "$1" >> srun-options; shift; done
"$1" "${@:2}" --plan --ranks $SLURM_NTASKS --ranks-per-node $SLURM_NTASKS_PER_NODE data.dataset_path=null > plan || exit
exit ${SRUN_CODE:-0}
"""


class Examples(program.ProgramTest):
    def setUp(self):
        super().setUp()
        for name, text in (("srun", SRUN), ("scontrol", "#!/bin/bash\necho \"$@\" >> requeued\n")):
            self.write(f"bin/{name}", text).chmod(0o755)
        os.symlink(program.ROOT / "configs", self.folder / "configs")
        self.environment |= {"PATH": f"{self.folder}/bin:{self.environment['PATH']}", "LLM_TRAIN": str(program.PROGRAM),
                             "SLURM_JOB_ID": "17", "SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "2",
                             "SLURM_NTASKS": "8", "SLURM_NTASKS_PER_NODE": "8", "SLURM_CPUS_PER_TASK": "2"}

    def run_example(self, path, *arguments, code=0):
        return subprocess.run(["bash", path, *arguments], cwd=self.folder, capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, env=self.environment | {"SRUN_CODE": str(code)})

    def test_each_example_plans_what_it_would_train(self):
        self.assertGreaterEqual(len(EXAMPLES), 4)
        for path in EXAMPLES:
            with self.subTest(example=path.name):
                self.assertEqual(subprocess.run(["bash", "-n", path]).returncode, 0)
                options = re.findall(r"(?m)^#SBATCH --([a-z-]+)(=\S+)?$", path.read_text())
                self.assertEqual(len(options), path.read_text().count("#SBATCH"))
                self.assertLessEqual({name for name, _ in options}, OPTIONS)
                nodes, per_node = (int(dict(options)[name][1:]) for name in ("nodes", "ntasks-per-node"))
                self.environment |= {"SLURM_NTASKS": str(nodes * per_node), "SLURM_NTASKS_PER_NODE": str(per_node)}
                done = self.run_example(path, "training.seed=7")
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertIn(f"{nodes * per_node} ranks on {nodes} node", (self.folder / "plan").read_text())
                given = (self.folder / "srun-options").read_text()
                self.assertIn("--mpi=pmix\n--kill-on-bad-exit\n", given)
                self.assertFalse((self.folder / "requeued").exists())

    def test_a_stop_that_saved_requeues_and_every_code_goes_on(self):
        for code in (0, 70, 75, 78):
            done = self.run_example(FOLDER / "requeue.sbatch", code=code)
            self.assertEqual(done.returncode, code, done)
            self.assertEqual((self.folder / "requeued").exists(), code == 75)
            if code == 75:
                self.assertEqual((self.folder / "requeued").read_text(), "requeue 17\n")
                (self.folder / "requeued").unlink()


if __name__ == "__main__":
    program.main()
