"""--trace DIR: timelines that parse, whose slices nest, whose arrows have both ends, and that show gradients on the way
while the backward goes on."""
import collections
import json

import program

RANKS = 3


class Timeline(program.ProgramTest):
    """One run that all tests of a class look at."""
    @classmethod
    def setUpClass(cls):
        maker = cls("run_once")
        maker.setUp()
        cls.addClassCleanup(maker.doCleanups)
        maker.train("run", *cls.ARGUMENTS, "--trace", "trace", ranks=cls.RANKS)
        cls.names = sorted(path.name for path in (maker.folder / "trace").iterdir())
        cls.ranks = [json.loads((maker.folder / "trace" / name).read_text())["traceEvents"] for name in cls.names]

    def run_once(self):
        """Not a test: the run that all of them look at."""

    def slices(self, rank, row=None, name=None):
        rows = {e["tid"]: e["args"]["name"] for e in self.ranks[rank] if e["name"] == "thread_name"}
        return [e for e in self.ranks[rank] if e["ph"] == "X" and (row is None or rows[e["tid"]].startswith(row)) and
                (name is None or e["name"] == name)]


class Traces(Timeline):
    RANKS = RANKS
    ARGUMENTS = ("optimization.gradient_accumulation_steps=2", "training.max_steps=4", "training.val_interval_steps=4",
                 "distributed.bucket_bytes=16384", "model.hidden_size=64")

    def test_each_rank_is_a_process_and_each_actor_a_thread(self):
        self.assertEqual(self.names, [f"rank-{r}.json" for r in range(RANKS)])
        for rank, events in enumerate(self.ranks):
            self.assertEqual({e["pid"] for e in events}, {rank})
            rows = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
            expected = {"stage", "data_feed", "gradient_reducer 0", "gradient_reducer 1", "optimizer_shard",
                        "compute queue", "reduction queue"}
            self.assertEqual(expected - rows, set())
            self.assertEqual("metrics" in rows, rank == 0)
            self.assertEqual({e["tid"] for e in events if "tid" in e} - {e["tid"] for e in events
                                                                          if e["name"] == "thread_name"}, set())

    def test_the_stage_shows_each_forward_and_backward_in_order(self):
        for rank in range(RANKS):
            order = [(e["name"], e["args"]["key"]) for e in self.slices(rank, "stage") if e["cat"] == "compute"]
            train = [item for item in order if item[0] != "V"]
            self.assertEqual(train, [("F", 0), ("B", 0), ("F", 1), ("B", 1)] * 4)
            self.assertGreater(len(order), len(train), "validation is shown")

    def test_ops_and_waits_are_shown_and_ops_of_a_queue_do_not_overlap(self):
        for rank in range(RANKS):
            ops = self.slices(rank, "compute queue")
            self.assertGreater(len(ops), 100)
            for before, after in zip(ops, ops[1:]):
                self.assertLessEqual(before["ts"] + before["dur"], after["ts"] + 0.01)
            waits = {e["name"] for e in self.slices(rank) if e["cat"] == "wait"}
            self.assertIn("grads_ready", waits)
            self.assertIn("parameters_updated", waits)

    def test_every_arrow_has_a_begin_and_an_end_on_two_ranks_and_time_does_not_run_back(self):
        ends = collections.defaultdict(dict)
        for rank, events in enumerate(self.ranks):
            for e in events:
                if e["ph"] in "sf" and e["cat"] == "message":
                    self.assertNotIn(e["ph"], ends[e["id"]], f"{e['id']} twice")
                    ends[e["id"]][e["ph"]] = (rank, e["ts"])
        self.assertGreater(len(ends), 4 * RANKS)
        for flow, pair in ends.items():
            self.assertEqual(set(pair), {"s", "f"}, f"{flow}: {pair}")
            self.assertNotEqual(pair["s"][0], pair["f"][0], flow)
            # Clocks agree within the round trip of a busy machine.
            self.assertLess(pair["s"][1], pair["f"][1] + 5000, f"{flow}: {pair}")

    def test_steps_follow_each_other_and_arrows_of_control_messages_end_where_somebody_waited(self):
        begun = {e["id"] for events in self.ranks for e in events if e["ph"] == "s" and e["cat"] == "control"}
        ended = [e["id"] for events in self.ranks for e in events if e["ph"] == "f" and e["cat"] == "control"]
        self.assertGreater(len(begun), 4 * RANKS, "step_facts of each step go to everyone")
        self.assertEqual(len(ended), len(set(ended)))
        self.assertEqual(set(ended) - begun, set())
        self.assertTrue(ended)
        for rank in range(RANKS):
            steps = self.slices(rank, "steps")
            self.assertEqual([e["args"]["key"] for e in steps], [1, 2, 3, 4])
            for before, after in zip(steps, steps[1:]):
                self.assertAlmostEqual(before["ts"] + before["dur"], after["ts"], delta=0.01)

    def test_a_wait_says_who_was_to_send_and_who_ended_it(self):
        for rank, events in enumerate(self.ranks):
            ids = {e["args"]["name"]: e["tid"] for e in events if e["name"] == "thread_name"}
            waits = [e["args"] for e in self.slices(rank, "optimizer_shard", "reduced")]
            self.assertTrue(waits)
            reducers = {ids["gradient_reducer 0"], ids["gradient_reducer 1"]}
            for wait in waits:
                self.assertEqual(wait["peer"], "gradient_reducer")
                self.assertIn(wait["by"], reducers)
            self.assertTrue(all("by" not in e["args"] for e in self.slices(rank, "stage", "computed")))

    def test_the_reducers_work_while_the_backward_goes_on(self):
        n_during = 0
        for rank in range(RANKS):
            last_backward = [e for e in self.slices(rank, "stage", "B") if e["args"]["key"] == 1]
            self.assertEqual(len(last_backward), 4)
            # Between a bucket's gradient being there and its sum a reducer waits for messages or adds.
            at_work = [e for row in ("gradient_reducer", "reduction queue") for e in self.slices(rank, row)
                       if e["name"] != "grads_ready"]
            n_during += sum(any(b["ts"] < w["ts"] < b["ts"] + b["dur"] for w in at_work) for b in last_backward)
        # All of them where each rank has a core; on a busy machine a rank's loop may be off its core meanwhile.
        self.assertGreaterEqual(n_during, RANKS, "a reduction begins within a step's last backward")

    def test_without_the_option_nothing_is_written(self):
        self.train("run")
        self.assertEqual(list(self.folder.rglob("rank-*.json")), [])


class Pairs(Timeline):
    """1f1b_pairs on tensor-parallel ranks: one microbatch computes while another's sums are on their way."""
    RANKS = 2
    ARGUMENTS = ("distributed.parallel_strategy=tp", "distributed.pp_n_microbatches=4", "training.batch_size=4",
                 "distributed.pp_schedule=1f1b_pairs", "training.max_steps=2", "model.hidden_size=64")
    SIDES = (", forward of a pair", ", backward of a pair")

    def test_each_side_computes_while_the_others_sums_are_on_their_way(self):
        for rank in range(self.RANKS):
            for waits, computes in (self.SIDES, self.SIDES[::-1]):
                sums = self.slices(rank, "tensor_sums", "sum of a layer" + waits)
                ops = self.slices(rank, "compute queue" + computes)
                hidden = [s for s in sums if any(o["ts"] < s["ts"] + s["dur"] and s["ts"] < o["ts"] + o["dur"]
                                                 for o in ops)]
                # Two blocks' sums at least, in three pairs of each of two steps.
                self.assertGreaterEqual(len(sums), 2 * 3 * 2)
                self.assertGreater(len(hidden), 0, f"rank {rank}{waits}")

    def test_sums_alternate_in_one_order_on_every_rank(self):
        orders = [[(s["args"]["key"], s["name"]) for s in self.slices(rank, "tensor_sums") if s["cat"] == "sum"]
                  for rank in range(self.RANKS)]
        self.assertEqual(orders[0], orders[1])
        names = [name for _, name in orders[0]]
        paired = [i for i, name in enumerate(names) if name.endswith(self.SIDES[0])]
        self.assertGreater(sum(names[i + 1].endswith(self.SIDES[1]) for i in paired), len(paired) / 2)

    def test_the_stage_shows_pairs(self):
        for rank in range(self.RANKS):
            order = [(e["name"], e["args"]["key"]) for e in self.slices(rank, "stage") if e["cat"] == "compute"]
            train = [item for item in order if item[0] != "V"]
            self.assertEqual(train, [("F", 0), ("F|B", 0), ("F|B", 1), ("F|B", 2), ("B", 3)] * 2)


del Timeline  # it has no run of its own

if __name__ == "__main__":
    program.main()
