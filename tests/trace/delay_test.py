"""A rank whose data is late by a known time: llm-trace finds the delay on the critical path, with its rank and actor.
usage: delay_test.py MPIRUN DELAYED_RANK LLM_TRACE"""
import json
import subprocess
import sys
import tempfile
import unittest

MPIRUN, DELAYED_RANK, LLM_TRACE = sys.argv[1:4]
RANKS = 3
DELAY_MS = 600


class Delay(unittest.TestCase):
    def check_found(self, layout, late_rank):
        with tempfile.TemporaryDirectory(prefix="llm-trace-test-") as folder:
            launch = [MPIRUN, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(RANKS)]
            subprocess.run([*launch, DELAYED_RANK, folder, layout, str(late_rank), str(DELAY_MS)], check=True, timeout=60)
            found = subprocess.run([LLM_TRACE, folder, "--json"], check=True, stdout=subprocess.PIPE, text=True, timeout=60)
            text = subprocess.run([LLM_TRACE, folder], check=True, stdout=subprocess.PIPE, text=True, timeout=60).stdout
        steps = json.loads(found.stdout)["steps"]
        self.assertEqual([step["step"] for step in steps], [1, 2, 3, 4, 5])
        slow = max(steps, key=lambda step: step["ms"])
        self.assertGreater(slow["ms"], DELAY_MS)
        longest = max(slow["path"], key=lambda part: part["ms"])
        self.assertEqual((longest["kind"], longest["rank"], longest["actor"]), ("work", late_rank, "data_feed"), longest)
        self.assertGreaterEqual(longest["ms"], 0.99 * DELAY_MS)
        self.assertAlmostEqual(sum(part["ms"] for part in slow["path"]), slow["ms"], places=3)
        self.assertEqual(slow["slowest_rank"], late_rank)
        self.assertIn(f"rank {late_rank} data_feed run", text)
        # The others had nothing to do but to wait for messages.
        for rank, figures in enumerate(slow["ranks"]):
            if rank != late_rank:
                self.assertGreater(sum(figures["exposed_ms"].values()), 0.5 * DELAY_MS, figures)

    def test_a_late_data_parallel_rank_is_named(self):
        self.check_found("dp", 1)

    def test_a_late_first_stage_is_named(self):
        self.check_found("pp", 0)


unittest.main(argv=sys.argv[:1])
