"""How a run starts: where its ranks stand, that mistakes of a launch end at once with their cure, and that two runs never
write into one folder. Nodes are this machine's ranks dealt out in turn (tests/support/nodes_shim.cpp)."""
import os
import re
import signal
import time

import program

SHIM = os.environ["NODES_SHIM"]
LONG = [*program.TINY, "training.max_steps=1000000", "training.epochs=1000000"]


class Launches(program.ProgramTest):
    def apps(self, *apps, nodes=2, common=()):
        """mpirun of several programs: (options of mpirun, arguments) of each, one rank each, on as many nodes."""
        line = [*program.MPIRUN]
        for options, arguments in apps:
            line += [*([":"] if "-n" in line else []), "-n", "1", *options, "-x", f"LD_PRELOAD={SHIM}",
                     "-x", f"LLM_TEST_NODES={nodes}", *self.program(options), *program.TINY, *common, *arguments]
        return line

    def program(self, options):
        return [self.other] if "--other" in options else [str(program.PROGRAM)]

    def run_line(self, line):
        program_of_test, self.command = self.command, lambda *_: [word for word in line if word != "--other"]
        try:
            return self.finish(self.start())
        finally:
            self.command = program_of_test

    def refused(self, line, *parts):
        done = self.run_line(line)
        self.assertEqual((done.code, len(done.causes())), (78, 1), done)
        for part in parts:
            self.assertIn(part, done.causes()[0])
        self.assertLess(done.seconds, 10, done)  # half a second on a machine that is not busy, or 1.5 to look for a folder
        return done

    def data(self):
        return f"data.dataset_path={self.text()}"

    def two_folders(self):
        for name in ("here", "there"):
            (self.folder / name).mkdir()
        return [["--wdir", str(self.folder / name)] for name in ("here", "there")]

    def test_a_table_says_where_each_rank_runs_unless_progress_is_off(self):
        done = self.train("run", ranks=2)
        self.assertRegex(done.out, r"(?m)^ranks +node +cores +device\n0-1 +\S+ +[\d,-]+ +cpu\n")
        self.assertNotIn("node  ", self.train("alone").out)
        self.assertNotIn("node  ", self.train("quiet", "logging.progress=off", ranks=2).out)

    def test_ranks_are_numbered_by_node_and_compute_the_same_bits(self):
        """Dealt out in turn, neighbours in mpirun's order would be on different nodes."""
        grid = ["distributed.parallel_strategy=3d", "distributed.tp_size=2", "distributed.pp_size=2",
                "training.batch_size=4"]
        plain = self.train("plain", *grid, ranks=4)
        self.assertNotIn("warning: distributed.tp_size", plain.err)
        cyclic = self.train("cyclic", *grid, ranks=4, preload=SHIM, env={"LLM_TEST_NODES": "2"})
        self.assertIn("4 ranks (2 a node)", cyclic.out)
        self.assertNotIn("warning: distributed.tp_size", cyclic.err)
        self.check_same("cyclic", "plain")
        spread = self.train("spread", *grid, ranks=4, preload=SHIM, env={"LLM_TEST_NODES": "4"})
        self.assertIn("warning: distributed.tp_size is 2, but nodes have 1 rank", spread.err)
        self.check_same("spread", "plain")

    def test_ranks_with_different_command_lines_are_refused(self):
        self.refused(self.apps(([], []), ([], ["training.lr=2"]), common=[self.data(), "logging.run_dir=run"]),
                     "launch: rank 1", "'training.lr=2'", "one command line")
        self.assertFalse((self.folder / "run").exists())

    def test_ranks_of_different_builds_are_refused(self):
        code = program.PROGRAM.read_bytes()
        text = b"Trains decoder-only language models"
        self.assertEqual(code.count(text), 1)
        self.other = str(self.write("llm-train", code.replace(text, text.upper())))
        os.chmod(self.other, 0o755)
        self.refused(self.apps(([], []), (["--other"], []), common=[self.data(), "logging.run_dir=run"]),
                     "rank 1", "another build", "start one file on all nodes")

    def test_a_file_that_nodes_have_otherwise_is_refused(self):
        here, there = self.two_folders()
        self.write("here/run.yaml", "training:\n  lr: 1\n")
        self.write("there/run.yaml", "training:\n  lr: 2\n")
        self.refused(self.apps((here, []), (there, []), common=["--config-path", "run.yaml", self.data(),
                                                                f"logging.run_dir={self.folder}/run"]),
                     "run.yaml: rank 1", "another file", "copy one to all nodes")
        (self.folder / "there/run.yaml").unlink()  # which only rank 0 has to read
        done = self.run_line(self.apps((here, []), (there, []), common=[
            "--config-path", "run.yaml", self.data(), f"logging.run_dir={self.folder}/run"]))
        self.assertEqual(done.code, 0, done)

    def test_a_variable_that_nodes_have_otherwise_is_refused(self):
        variable = "LLM_TRAINING__LR"
        self.refused(self.apps((["-x", f"{variable}=1"], []), (["-x", f"{variable}=2"], []),
                               common=[self.data(), "logging.run_dir=run"]),
                     f"environment {variable}: '2' on rank 1", "'1' on rank 0", "set it alike")
        done = self.run_line(self.apps((["-x", f"{variable}=1"], []), ([], []),
                                       common=[self.data(), "logging.run_dir=run"]))
        self.assertEqual(done.code, 0, done)

    def test_variables_of_the_guide_that_contradict_mpi_are_refused(self):
        for variable, value, parts in (
                ("NUM_NODES", "2", ["distributed.num_nodes: 2", "MPI sees 1 node of 2 ranks", "unset it"]),
                ("GPUS_PER_NODE", "4", ["distributed.gpus_per_node: 4", "MPI sees 1 node of 2 ranks"]),
                ("NODE_RANK", "1", ["NODE_RANK: 1", "node 0 of 1", "unset it"])):
            with self.subTest(variable=variable):
                self.refused(self.apps((["-x", f"{variable}={value}"], []), (["-x", f"{variable}={value}"], []), nodes=1,
                                       common=[self.data(), "logging.run_dir=run"]), f"environment {variable}", *parts)

    def test_a_folder_that_not_all_nodes_share_is_refused(self):
        here, there = self.two_folders()
        common = [self.data(), "checkpoint.save_interval_steps=3"]
        for field in ("logging.run_dir=run", "checkpoint.checkpoint_dir=kept"):
            other = [] if "run_dir" in field else [f"logging.run_dir={self.folder}/run"]
            self.refused(self.apps((here, []), (there, []), common=[*common, field, *other]),
                         field.replace("=", ": "), "(rank 0) is another folder than on", "(rank 1)", "all nodes share")
            self.assertEqual(os.listdir(self.folder / "there"), [])
            self.assertEqual(os.listdir(self.folder / "here"), [])

    def long_run(self, *arguments, ranks=0):
        process = self.start(*LONG, self.data(), *arguments, ranks=ranks)
        program.wait_until(lambda: (self.folder / "run/metrics.jsonl").exists())
        return process

    def test_a_folder_that_a_run_writes_into_is_refused_until_it_ends(self):
        process = self.long_run("logging.run_dir=run", "checkpoint.checkpoint_dir=kept", ranks=2)
        pid = program.children(process.pid)[0]
        for field, others in (("logging.run_dir=run", []), ("logging.run_dir=run", ["checkpoint.resume_from_checkpoint=auto"]),
                              ("checkpoint.checkpoint_dir=kept", ["logging.run_dir=other"])):
            begin = time.monotonic()
            done = self.llm_train(*program.TINY, self.data(), field, *others)
            self.assertEqual((done.code, len(done.causes())), (78, 1), done)
            self.assertIn(f"{field.replace('=', ': ')} is in use by process {pid} on ", done.causes()[0])
            self.assertLess(time.monotonic() - begin, 10)
        os.kill(process.pid, signal.SIGUSR1)
        self.assertEqual(self.finish(process).code, 75)
        self.assertEqual(sorted(p.name for p in self.folder.rglob("*.lock")), [])
        done = self.llm_train(*LONG, self.data(), "logging.run_dir=run", "checkpoint.checkpoint_dir=kept", "training.batch_size=4",
                              f"training.max_steps={len(self.metrics('run'))}", "checkpoint.resume_from_checkpoint=auto")
        self.assertEqual((done.code, done.err), (0, ""), done)

    def test_the_folder_of_a_killed_run_is_taken_over_with_a_warning(self):
        process = self.long_run("logging.run_dir=run")
        os.kill(process.pid, signal.SIGKILL)
        self.finish(process)
        done = self.llm_train(*program.TINY, self.data(), "logging.run_dir=run", "checkpoint.resume_from_checkpoint=auto")
        self.assertEqual(done.code, 0, done)
        self.assertRegex(done.err, r"^warning: logging.run_dir: run/run.lock is taken over from process \d+ on \S+: "
                                   r"its process has ended\n$")
        self.assertFalse((self.folder / "run/run.lock").exists())

    def test_a_requeued_job_takes_over_what_it_left(self):
        job = {"SLURM_JOB_ID": "17"}
        self.write("run/run.lock", '{"host":"elsewhere","pid":"1","job":"17","alive":"","began":"2","processes":"3",'
                                   '"restarts":""}')
        for env, code in ((job, 78), (job | {"SLURM_RESTART_COUNT": "1"}, 0)):
            done = self.llm_train(*program.TINY, self.data(), "logging.run_dir=run", env=env)
            self.assertEqual(done.code, code, done)
        self.assertIn("this job before it was requeued", done.err)

    def test_several_tasks_without_their_mpi_are_refused_but_not_in_tools(self):
        batch = {"SLURM_JOB_ID": "17", "SLURM_NTASKS": "4"}
        done = self.llm_train(*program.TINY, self.data(), "logging.run_dir=run", env=batch)
        self.assertEqual((done.code, len(done.causes())), (78, 1), done)
        self.assertIn("Slurm says 4 ranks, but MPI sees 1", done.causes()[0])
        self.assertIn("srun --mpi=pmix", done.causes()[0])
        for arguments in (["--plan", self.data()], ["--explain", "training.lr"]):
            self.assertEqual(self.llm_train(*arguments, env=batch).code, 0)
        for rank in "01":
            env = batch | {"SLURM_PROCID": rank, "SLURM_STEP_ID": "0"}
            done = self.llm_train(*program.TINY, self.data(), "logging.run_dir=run", env=env)
            self.assertEqual((done.code, len(done.causes())), (78, 1 if rank == "0" else 0), done)
            self.assertLess(done.seconds, 4)

    def test_a_stop_while_data_is_read_ends_with_75(self):
        """Or while the first step is under way, if the machine is that fast."""
        self.write("long.txt", self.text().read_bytes() * 2000)
        for ranks in (0, 2):
            with self.subTest(ranks=ranks):
                run = f"run-{ranks}"
                process = self.start(*LONG, "data.dataset_path=long.txt", f"data.cache_dir={self.folder}/cache-{ranks}",
                                     f"logging.run_dir={run}", ranks=ranks)
                program.wait_until(lambda: (self.folder / run / "run.lock").exists())
                os.kill(process.pid, signal.SIGUSR1)
                done = self.finish(process)
                self.assertEqual(done.code, 75, done)
                if done.causes():
                    self.assertIn("stopped by a signal before the first step: nothing to save", done.causes()[0])
                    self.assertEqual(len(done.causes()), 1, done)
                else:
                    self.assertTrue(list((self.folder / run / "checkpoints").iterdir()), done)


if __name__ == "__main__":
    program.main()
