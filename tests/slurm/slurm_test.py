"""llm-train under a real SLURM: srun computes mpirun's bits on any number of nodes, and every way in which a job is
stopped ends as docs/slurm.md says. Skipped (77), with the reason, without root, network namespaces or SLURM."""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import cluster

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "cli"))
import program  # noqa: E402

# Steps of a run that is stopped on its way: some seconds of them.
N_STEPS = 3000
GRID = ["distributed.parallel_strategy=3d", "distributed.tp_size=2", "training.global_batch_size=8", "training.batch_size=4"]
SCRIPT = program.ROOT / "configs/slurm/requeue.sbatch"


def crashed_in_mpi_init(done):
    """Open MPI's own crash under pmix (docs/slurm.md): before any rank of this program has said a word."""
    return "Signal: Segmentation fault" in done.err and "Failing at address: (nil)" in done.err and done.out == "" and done.causes() == []


class Slurm(program.ProgramTest):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cluster.Cluster(4, "/mnt")
        tempfile.tempdir = cls.cluster.folder / "tests"
        tempfile.tempdir.mkdir()

    def setUp(self):
        super().setUp()
        self.environment |= {"SLURM_CONF": f"{self.cluster.folder}/slurm.conf", "PATH": cluster.PATH, "SLURM_PMIX_FENCE": "tree",
                             "LLM_TRAIN": str(program.PROGRAM), "CONFIG": "tiny.yaml"}
        self.write("tiny.yaml", "training:\n  seed: 42\n")
        self.data = f"data.dataset_path={self.text()}"

    def at_n0(self, *command):
        process = subprocess.Popen(self.cluster.command(0, *command, folder=self.folder), text=True, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self.environment,
                                   start_new_session=True)
        process.begin = time.monotonic()
        self.addCleanup(self.end, process)
        return process

    def srun(self, options, *arguments):
        start = ["srun", "--overcommit", *options, program.PROGRAM, *program.TINY, self.data, *arguments]
        done = self.finish(self.at_n0(*start), timeout=90)
        if crashed_in_mpi_init(done):
            print("  a rank crashed in MPI_Init: started once more")
            done = self.finish(self.at_n0(*start), timeout=90)
        done.err = "".join(line for line in done.err.splitlines(True) if not line.startswith("srun: "))
        return done

    def reference(self, run, *arguments, ranks=4):
        self.train(run, self.data, *arguments, ranks=ranks, timeout=120)

    def submit(self, *arguments, options=()):
        out = self.cluster.on(0, "sbatch", "--parsable", "--overcommit", "--nodes=2", "--ntasks-per-node=1", "--output=job-%j.log",
                              *options, SCRIPT, *program.TINY, self.data, *arguments, env=self.environment, folder=self.folder)
        job = out.split(";")[0].strip()
        self.addCleanup(self.end_job, job)
        return job

    def end_job(self, job):
        subprocess.run(self.cluster.command(0, "scancel", job), env=self.environment, capture_output=True)
        subprocess.run(self.cluster.command(0, "scancel", "--signal=KILL", job), env=self.environment, capture_output=True)
        self.wait_for(job, lambda j: j.get("JobState") not in ("RUNNING", "COMPLETING"), what="end")

    def job(self, job):
        """Fields of scontrol; {} where SLURM has forgotten the job."""
        done = subprocess.run(self.cluster.command(0, "scontrol", "-o", "show", "job", job), capture_output=True, text=True,
                              env=self.environment)
        return dict(re.findall(r"(\w+)=(\S*)", done.stdout))

    def wait_for(self, job, condition, seconds=60, what="such state"):
        return self.cluster.wait(lambda: condition(self.job(job)), seconds, f"{what} of job {job}", lambda: self.told(job))

    def log(self, job):
        path = self.folder / f"job-{job}.log"
        return path.read_text() if path.exists() else ""

    def told(self, job):
        return f"{self.job(job)}\n--- {job}\n{self.log(job)}"

    def steps(self, job):
        """All starts' steps, in order of their numbers."""
        found = {}
        for path in (self.folder / f"runs/slurm-{job}").glob("metrics*.jsonl"):
            for line in path.read_text().splitlines(True):
                if line.endswith("\n") and '"kind":"step"' in line:
                    line = json.loads(line)
                    found[line["step"]] = line["loss"]
        return found

    def train_until(self, job, n_steps):
        self.cluster.wait(lambda: len(self.steps(job)) >= n_steps, 60, f"{n_steps} steps of job {job}", lambda: self.told(job))

    def check_continued(self, job, reference="plain"):
        self.wait_for(job, lambda j: j["JobState"] == "COMPLETED", 90, "completion")
        log = self.log(job)
        stopped = re.findall(r"stopped by a signal after (\d+) of", log)
        self.assertEqual(len(stopped), 1, log)
        self.assertIn(f"resumed: runs/slurm-{job}/checkpoints/step-{int(stopped[0]):08}, step {stopped[0]} of {N_STEPS}", log)
        self.assertNotRegex(log, r"(?m)^error:")
        self.assertEqual([loss for _, loss in sorted(self.steps(job).items())], self.losses(reference))
        weights = (self.folder / f"runs/slurm-{job}/model.safetensors").read_bytes()
        self.assertTrue(weights == self.weights(reference), "the weights of a run without a stop")
        self.assertEqual(list((self.folder / f"runs/slurm-{job}").rglob("run.lock")), [])

    def test_srun_over_two_and_four_nodes_computes_the_bits_of_mpirun_on_one(self):
        self.reference("plain", *GRID)
        for nodes, distribution in ((1, "block"), (2, "block"), (2, "cyclic"), (4, "block")):
            with self.subTest(nodes=nodes, distribution=distribution):
                run = f"{nodes}-{distribution}"
                done = self.srun(["--mpi=pmix", "-K", f"-N{nodes}", "-n4", f"--distribution={distribution}"], *GRID,
                                 f"logging.run_dir={run}")
                self.assertEqual(done.code, 0, done)
                self.check_same(run, "plain")
                self.assertIn(f"4 ranks ({4 // nodes} a node)", done.out)
                rows = re.findall(r"(?m)^(\d+)(?:-\d+)? +(n\d) +\S+ +cpu$", done.out)  # one a node, whichever SLURM gave
                self.assertEqual([int(first) for first, _ in rows], [node * 4 // nodes for node in range(nodes)], done.out)
                self.assertEqual(len({host for _, host in rows}), nodes, done.out)
                spans = "warning: distributed.tp_size is 2, but nodes have 1 rank" in done.err
                self.assertEqual(spans, nodes == 4, done.err)

    def test_mistakes_end_with_one_line_and_78(self):
        for options, arguments, parts in (
                (["--mpi=none", "-n4"], [], ["srun started 4 tasks with --mpi=none", "srun --mpi=pmix"]),
                (["--mpi=pmi2", "-n4"], [], ["--mpi=pmi2", "srun --mpi=pmix"]),
                (["--mpi=pmix", "-n4", "--export=ALL,NUM_NODES=3"], [], ["NUM_NODES: distributed.num_nodes: 3", "2 nodes of 2 ranks"]),
                (["--mpi=pmix", "-n4", "--export=ALL,NODE_RANK=0"], [], ["NODE_RANK: 0 on n", "node 1 of 2", "unset it"]),
                (["--mpi=pmix", "-n4"], ["training.lrr=1"], ["training.lrr"])):
            for kill in ([], ["-K"]):
                with self.subTest(options=options, kill=kill):
                    done = self.srun(["-N2", *options, *kill], *arguments, "logging.run_dir=refused")
                    self.assertEqual((done.code, len(done.causes())), (78, 1), done)
                    for part in parts:
                        self.assertIn(part, done.causes()[0])
                    self.assertLess(done.seconds, 15, done)
                    print(f"  {' '.join(options)} {' '.join(kill)}: {done.seconds:.2f} s")
        self.assertFalse((self.folder / "refused").exists())

    def test_a_folder_that_one_node_has_for_itself_is_refused(self):
        # As a disk of the node's own: the job's temporary folder.
        script = self.write("own.sh", f'mkdir -p /mnt/own-$(hostname) && cd /mnt/own-$(hostname) && exec {program.PROGRAM} "$@"\n')
        done = self.finish(self.at_n0("srun", "--mpi=pmix", "-K", "-N2", "-n2", "bash", script, *program.TINY, self.data,
                                      "logging.run_dir=run"))
        self.assertEqual((done.code, len(done.causes())), (78, 1), done)
        self.assertRegex(done.causes()[0], r"logging.run_dir: run on n\d \(rank 0\) is another folder than on n\d \(rank 1\)")

    def test_a_second_job_in_the_folder_is_refused(self):
        job = self.submit("training.max_steps=1000000", "training.epochs=1000000")
        self.train_until(job, 5)
        done = self.srun(["--mpi=pmix", "-K", "-N1", "-n1"], f"logging.run_dir=runs/slurm-{job}",
                         "checkpoint.resume_from_checkpoint=auto")
        self.assertEqual((done.code, len(done.causes())), (78, 1), done)
        self.assertRegex(done.causes()[0], rf"is in use by process \d+ on n\d \(job {job}\)")

    def long(self):
        return [f"training.max_steps={N_STEPS}", "training.epochs=100000", "training.run_validation=false"]

    def test_a_signal_saves_and_the_script_requeues_to_the_same_bits(self):
        self.reference("plain", *self.long(), ranks=2)
        job = self.submit(*self.long())
        self.train_until(job, 50)
        self.cluster.on(0, "scancel", "--signal=USR1", job)
        self.wait_for(job, lambda j: j["Restarts"] == "1", what="requeue")
        self.check_continued(job)

    def test_a_preempted_job_saves_and_goes_on_to_the_same_bits(self):
        self.reference("plain", *self.long(), ranks=2)
        job = self.submit(*self.long(), options=["--partition=low", "--exclusive"])
        self.train_until(job, 50)
        self.cluster.on(0, "srun", "--partition=high", "--exclusive", "-N4", "true", env=self.environment)
        self.wait_for(job, lambda j: j["Restarts"] == "1", what="requeue")
        self.check_continued(job)

    def test_the_end_of_its_time_saves_and_requeues(self):
        job = self.submit("training.max_steps=1000000", "training.epochs=1000000", options=["--time=1", "--signal=USR1@55"])
        self.wait_for(job, lambda j: j["Restarts"] == "1", 75, "requeue")
        log = self.log(job)
        (stopped,) = re.findall(r"stopped by a signal after (\d+) of", log)
        self.assertTrue((self.folder / f"runs/slurm-{job}/checkpoints/step-{int(stopped):08}/manifest.json").exists(), log)
        self.assertNotRegex(log, r"(?m)^error:")

    def test_a_cancelled_job_saves_and_stays_cancelled(self):
        job = self.submit("training.max_steps=1000000", "training.epochs=1000000")
        self.train_until(job, 20)
        self.cluster.on(0, "scancel", job)
        self.wait_for(job, lambda j: j["JobState"] == "CANCELLED", what="end")
        (stopped,) = self.cluster.wait(lambda: re.findall(r"stopped by a signal after (\d+) of", self.log(job)), 30,
                                         "save", lambda: self.told(job))
        self.assertTrue((self.folder / f"runs/slurm-{job}/checkpoints/step-{int(stopped):08}/manifest.json").exists())
        time.sleep(3)  # what would come back comes back at once
        self.assertEqual(self.job(job)["JobState"], "CANCELLED", self.log(job))

    def test_a_killed_rank_ends_the_job_and_its_folder_is_taken_over(self):
        job = self.submit("training.max_steps=1000000", "training.epochs=1000000")
        self.train_until(job, 20)
        lock = json.loads((self.folder / f"runs/slurm-{job}/run.lock").read_text())
        os.kill(int(lock["pid"]), signal.SIGKILL)
        self.wait_for(job, lambda j: j["JobState"] == "FAILED", what="failure")
        done = self.srun(["--mpi=pmix", "-K", "-N2", "-n2"], f"logging.run_dir=runs/slurm-{job}",
                         "checkpoint.resume_from_checkpoint=auto")
        self.assertEqual(done.code, 0, done)
        self.assertRegex(done.err, rf"warning: logging.run_dir: \S+run.lock is taken over from process \d+ on n\d \(job {job}\)")


if __name__ == "__main__":
    cluster.contain()
    program.main()
