"""llm-trace on real runs: figures that add up, one file for Perfetto, and refusals with their exit codes. Called with
llm-train, the project's root and llm-trace."""
import json
import pathlib
import shutil
import subprocess
import sys
import unittest

import program

LLM_TRACE = pathlib.Path(sys.argv[3]).resolve()
RANKS = 4


class TraceTool(program.ProgramTest):
    @classmethod
    def setUpClass(cls):
        cls.maker = cls("run_once")
        cls.maker.setUp()
        cls.addClassCleanup(cls.maker.doCleanups)
        cls.maker.train("run", "model.num_layers=4", "training.batch_size=4", "training.val_interval_steps=3",
                        "distributed.parallel_strategy=pp", "distributed.pp_size=2", "distributed.pp_n_microbatches=4",
                        "optimization.gradient_accumulation_steps=2", "--trace", "trace", ranks=RANKS)
        cls.traces = cls.maker.folder / "trace"

    def run_once(self):
        """Not a test: the run that all of them look at."""

    def llm_trace(self, *arguments, code=0):
        done = subprocess.run([str(LLM_TRACE), *map(str, arguments)], cwd=self.folder, capture_output=True, text=True,
                              env=self.environment, timeout=60)
        self.assertEqual(done.returncode, code, done)
        return done

    def copied(self):
        folder = self.folder / "copy"
        shutil.copytree(self.traces, folder, ignore=shutil.ignore_patterns("trace.json"))
        return folder

    def test_a_ranks_times_add_up_to_its_step_and_a_path_to_the_steps(self):
        report = json.loads(self.llm_trace(self.traces, "--json").stdout)
        self.assertEqual(report["n_ranks"], RANKS)
        self.assertEqual([step["step"] for step in report["steps"]], [1, 2, 3, 4, 5, 6])
        for step in report["steps"]:
            for rank in step["ranks"]:
                parts = sum(rank[f"{part}_ms"] for part in ("compute", "sums", "actors", "own_waits", "other"))
                self.assertAlmostEqual(parts + sum(rank["exposed_ms"].values()), rank["ms"], places=3)
                self.assertGreater(rank["compute_ms"], 0)
                self.assertLessEqual(rank["overlapped_ms"], rank["in_flight_ms"])
            self.assertAlmostEqual(sum(part["ms"] for part in step["path"]), step["ms"], places=3)
            self.assertTrue(any(part["actor"] == "stage" for part in step["path"]))
            # Every action of the trace is one of the schedule's: there is a plan of two flushes.
            self.assertGreater(step["planned_flush_ms"], 0)
            self.assertTrue(0 < step["planned_bubble"] < 1)
            self.assertTrue(0 < step["bubble"] < 1)
        kinds = {kind for step in report["steps"] for rank in step["ranks"] for kind in rank["exposed_ms"]}
        self.assertTrue(kinds & {"activation", "input_grad", "piece"}, kinds)

    def test_all_ranks_come_into_one_file_beside_them_or_where_it_is_asked_for(self):
        folder = self.copied()
        out = self.llm_trace(folder).stdout
        self.assertIn("critical path of step", out)
        self.assertIn("clocks of two ranks agree within", out)
        events = json.loads((folder / "trace.json").read_text())["traceEvents"]
        self.assertEqual({event["pid"] for event in events}, set(range(RANKS)))
        self.llm_trace(folder, "--merge", "all.json", "--first", 2, "--last", 3)
        self.assertEqual(json.loads((self.folder / "all.json").read_text())["traceEvents"], events)
        steps = json.loads(self.llm_trace(folder, "--json", "--first", 2, "--last", 3).stdout)["steps"]
        self.assertEqual([step["step"] for step in steps], [2, 3])

    def test_the_page_has_the_losses_of_the_run_that_the_trace_names(self):
        self.llm_trace(self.traces, "--html", "page.html", "--json")
        page = (self.folder / "page.html").read_text()
        data = json.loads(page.split('id="data">')[1].split("</script>")[0])
        self.assertEqual([step for step, _ in data["losses"]["train"]], [1, 2, 3, 4, 5, 6])
        self.assertEqual([step for step, _ in data["losses"]["validation"]], [3, 6])
        self.assertEqual(len(data["ranks"]), RANKS)
        self.assertIn("planned", [lane["name"] for lane in data["ranks"][0]["lanes"]])

    def test_each_wrong_folder_or_argument_has_its_exit_code_and_cause(self):
        def refused(code, cause, *arguments):
            done = self.llm_trace(*arguments, code=code)
            self.assertIn(cause, done.stderr)
        folder = self.copied()
        refused(74, "no rank-0.json is here", self.folder)
        refused(64, "DIR", "--json")
        refused(64, "--step 9", folder, "--step", 9)
        refused(65, "no step", folder, "--first", 99)
        refused(74, "--run-dir", folder, "--html", "page.html", "--run-dir", folder)
        (folder / "rank-3.json").unlink()
        refused(65, "has the traces of 3 ranks, and the run had 4", folder)
        whole = (self.traces / "rank-3.json").read_bytes()
        (folder / "rank-3.json").write_bytes(whole[:len(whole) // 2])
        refused(65, "rank-3.json: is cut off", folder)
        self.train("another", "--trace", "other")
        shutil.copy(self.folder / "other/rank-0.json", folder / "rank-3.json")
        refused(65, "rank-3.json: is of run", folder)


if __name__ == "__main__":
    sys.argv.pop(3)
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
