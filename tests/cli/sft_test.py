"""Fine-tuning by the whole program (--task sft): one rank's numbers in every layout, what the start says, what is refused."""
import json
import os
import re
import subprocess

import program

SFT = ["--task", "sft", "model.max_seq_len=64", "data.max_seq_len=64", "training.batch_size=4", "distributed.pp_n_microbatches=2",
       "optimization.use_amp=false", "training.val_interval_steps=3"]


class FineTuning(program.ProgramTest):
    def examples(self, n=60, name="examples.jsonl"):
        """Chats about words, one without an answer and one that is longer than a sample."""
        lines = [{"messages": [{"role": "user", "content": f"say {i}"}, {"role": "assistant", "content": f"it is {i % 7}"}]}
                 for i in range(n)]
        lines += [{"messages": [{"role": "user", "content": "nobody answers"}]},
                  {"messages": [{"role": "user", "content": "long"}, {"role": "assistant", "content": "word " * 40}]}]
        return self.write(name, "".join(json.dumps(line) + "\n" for line in lines))

    def tune(self, run, *fields, ranks=0):
        return self.train(run, *SFT, f"data.dataset_path={self.examples()}", *fields, ranks=ranks)

    def test_every_layout_trains_as_one_rank_does(self):
        for packing in ("false", "true"):
            fields = [f"data.packing={packing}", "training.global_batch_size=4"]
            one = f"one-{packing}"
            done = self.tune(one, *fields)
            self.assertIn("data: 61 examples, 1 more without an answer skipped, 1 cut at their end; ", done.out)
            self.assertIn("sample:\n  ### User:\n  say 0\n  \n  ### Assistant:\n", done.out)
            layouts = {"dp": ["training.batch_size=2", "distributed.pp_n_microbatches=1"],
                       "pp": ["distributed.parallel_strategy=pp"],
                       "fsdp": ["training.batch_size=2", "distributed.pp_n_microbatches=1", "distributed.parallel_strategy=zero",
                                "distributed.zero_stage=3"]}
            for layout, more in layouts.items():
                run = f"{layout}-{packing}"
                self.tune(run, *fields, *more, ranks=2)
                self.assertEqual(self.losses(run), self.losses(one), run)
                self.assertEqual(self.metrics(run, "validation")[0]["loss"], self.metrics(one, "validation")[0]["loss"], run)
                self.assertTrue(self.weights(run) == self.weights(one), run)
            self.tune(f"tp-{packing}", *fields, "distributed.parallel_strategy=tp", ranks=2)
            for a, b in zip(self.losses(f"tp-{packing}"), self.losses(one), strict=True):
                self.assertAlmostEqual(a, b, delta=1e-5 * b)

    def test_validation_files_are_examples_too(self):
        done = self.tune("run", f"data.val_dataset_path={self.examples(20, 'held.jsonl')}")
        self.assertIn("; validation: 21 examples, 1 more without an answer skipped, 1 cut at their end, 21 validation samples",
                      done.out)

    def test_the_plan_counts_examples(self):
        done = self.llm_train(*program.TINY, *SFT, f"data.dataset_path={self.examples()}", "training.max_steps=0",
                              "training.epochs=1", "--plan")
        self.assertEqual(done.code, 0, done)
        self.assertRegex(done.out, r"steps +13\n")  # 55 of 61 examples train, 4 a step

    def refused(self, lines, *fields):
        done = self.llm_train(*program.TINY, *SFT, f"data.dataset_path={self.write('bad.jsonl', lines)}", *fields, ranks=2)
        self.assertEqual(len(done.causes()), 1, done)
        return done.code, done.causes()[0]

    def test_a_malformed_line_is_named_with_its_place(self):
        code, cause = self.refused('{"instruction": "a", "output": "b"}\n{"instruction": "a"}\n')
        self.assertEqual(code, 65)
        self.assertIn('bad.jsonl:2: has no field "output"', cause)
        code, cause = self.refused('{"messages": [{"role": "user", "content": "a"}]}\n')
        self.assertEqual(code, 65)
        self.assertIn("none of 1 examples has an answer within data.max_seq_len 64", cause)
        code, cause = self.refused("", f"data.dataset_path={self.text()}")
        self.assertEqual(code, 65)
        self.assertIn("text.txt is not .jsonl", cause)

    def test_the_pages_commands_run(self):
        os.symlink(program.ROOT / "configs", self.folder / "configs")
        (self.folder / "build").mkdir()
        os.symlink(program.PROGRAM, self.folder / "build/llm-train")
        for block in re.findall(r"^```sh\n(.*?)^```", (program.ROOT / "docs/sft.md").read_text(), re.M | re.S):
            done = subprocess.run(["bash", "-euo", "pipefail", "-c", block], cwd=self.folder, text=True, stdin=subprocess.DEVNULL,
                                  capture_output=True, timeout=60, env=self.environment | {"LLM_TRAINING__MAX_STEPS": "20"})
            self.assertEqual(done.returncode, 0, done)

    def test_packing_belongs_to_this_task(self):
        done = self.llm_train(*program.TINY, f"data.dataset_path={self.text()}", "data.packing=true")
        self.assertEqual(done.code, 78, done)
        self.assertIn("data.packing: true, but samples of --task lm are full anyway; write --task sft", done.causes()[0])


if __name__ == "__main__":
    program.main()
