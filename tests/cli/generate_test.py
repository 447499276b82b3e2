"""llm-generate: text from folders, runs and checkpoints, the same for one seed; --eval has the loss of a run's validation."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import program

GENERATE = pathlib.Path(sys.argv.pop(3)).resolve()
GOLDEN = program.ROOT / "tests" / "golden"
F32 = "optimization.use_amp=false"
LLAMA = ["model.norm_impl=rms_norm", "model.use_glu=true", "model.mlp_activation=silu", "model.qkv_bias=false",
         "model.mlp_bias=false", "model.lm_head_bias=false", "model.num_kv_heads=1"]


class Generate(program.ProgramTest):
    def generate(self, *arguments, threads=1):
        done = subprocess.run([str(GENERATE), *map(str, arguments), "--threads", str(threads)], cwd=self.folder, capture_output=True,
                              env=self.environment, stdin=subprocess.DEVNULL, timeout=60)
        return program.Done(done.returncode, done.stdout.decode(), done.stderr.decode(), 0)  # whole characters alone

    def said(self, *arguments, **options):
        done = self.generate(*arguments, **options)
        self.assertEqual((done.code, done.causes()), (0, []), done)
        return done.out

    def refused(self, *arguments):
        done = self.generate(*arguments)
        self.assertEqual(len(done.causes()), 1, done)
        self.assertEqual(done.out, "")
        return done.code, done.causes()[0]

    def test_one_seed_gives_one_text_on_any_number_of_threads(self):
        self.train("run", F32, *LLAMA)
        self.assertTrue((self.folder / "run/config.json").exists())
        text = ["--model", "run", "--prompt", "the ", "--max-new-tokens", 20]
        first = self.said(*text, "--seed", 1)
        self.assertEqual(first, self.said(*text, "--seed", 1, threads=3))
        self.assertNotEqual(first, self.said(*text, "--seed", 2))
        greedy = self.said(*text, "--temperature", 0)
        self.assertEqual(greedy, self.said(*text, "--top-k", 1, "--seed", 9))
        self.assertEqual(greedy, self.said(*text, "--top-p", 1e-9, "--seed", 9))

    def test_a_text_ends_at_the_models_last_position(self):
        self.train("run", F32)
        done = self.generate("--model", "run", "--prompt", "ab", "--max-new-tokens", 1000, "--top-k", 3)
        self.assertIn("2 tokens read in", done.err)
        self.assertRegex(done.err, r"31 written, .*; ended at the model's last position|ended by the end token")

    def test_eval_has_the_loss_of_a_runs_validation(self):
        held = self.text("held.txt", 1000)
        self.train("run", F32, f"data.dataset_path={self.text()}", f"data.val_dataset_path={held}", "training.val_interval_steps=6")
        line = self.said("--model", "run", "--eval", held)
        loss = float(re.match(r"loss ([0-9.]+)  perplexity", line).group(1))
        self.assertAlmostEqual(loss, self.metrics("run", "validation")[-1]["loss"], delta=2e-6)
        self.assertIn("  992 tokens in 31 samples of 32, 7 after the last not counted\n", line)
        self.assertIn("  2 tokens in 1 sample of 2\n", self.said("--model", "run", "--eval", self.write("short.txt", "abc")))

    def test_the_last_checkpoint_of_a_run_is_read(self):
        self.train("run", F32, "checkpoint.save_interval_steps=3")
        (self.folder / "run/model.safetensors").unlink()
        done = self.generate("--model", "run", "--prompt", "a")
        self.assertEqual(done.code, 0, done)
        self.assertIn("step-00000006: ", done.err)
        step = "run/checkpoints/step-00000003"
        self.assertIn(f"{step}: ", self.generate("--model", step, "--prompt", "a").err)

    def test_a_sharded_checkpoint_of_any_layout_is_read_as_it_is(self):
        self.train("run", F32, "checkpoint.save_interval_steps=3", "checkpoint.state_dict_type=sharded",
                   "distributed.parallel_strategy=tp", "distributed.zero_stage=1", "distributed.tp_size=2", ranks=4)
        last = sorted((self.folder / "run/checkpoints").glob("step-*"))[-1]
        self.assertFalse((last / "model.safetensors").exists())
        text = ["--prompt", "the ", "--max-new-tokens", 12, "--temperature", 0]
        done = self.generate("--model", "run/checkpoints", *text)
        self.assertEqual(done.code, 0, done)
        self.assertIn("a sharded checkpoint", done.err)
        self.assertEqual(done.out, self.said("--model", last, *text))
        self.assertEqual(done.out, self.said("--model", "run", *text), "the weights at the end of the run")
        held = ["--eval", self.text("held.txt", 1000)]
        self.assertEqual(self.said("--model", last, *held), self.said("--model", "run", *held))
        (last / "rank-00001.safetensors").unlink()
        code, cause = self.refused("--model", last, *text)
        self.assertEqual(code, 74)
        self.assertIn("rank-00001.safetensors", cause)
        (last / "manifest.json").unlink()
        self.assertEqual(self.refused("--model", "run/checkpoints", *text), (74, f"error: run/checkpoints/{last.name}: has no "
                         "model.safetensors and no manifest.json; it is no whole checkpoint: remove it, or name another folder"))

    def test_a_model_that_hugging_face_does_not_have_is_read_by_the_runs_configuration(self):
        self.train("run", F32, "model.use_rope=false", "model.lm_head_bias=true")
        self.assertFalse((self.folder / "run/config.json").exists())
        self.said("--model", "run", "--prompt", "a", "--max-new-tokens", 5)

    def test_a_run_keeps_its_tokenizer_beside_its_weights(self):
        tokenizer = self.write("gpt2.json", (GOLDEN / "tokenizer_gpt2.json").read_bytes())
        self.train("run", F32, *LLAMA, "model.vocab_size=705", "data.tokenizer_type=hf",
                   f"data.tokenizer_path={tokenizer}")
        self.assertEqual((self.folder / "run/tokenizer.json").read_bytes(), tokenizer.read_bytes())
        tokens = json.loads(tokenizer.read_text())["added_tokens"]
        (end,) = [token["id"] for token in tokens if token["content"] == "<|endoftext|>"]
        for name in ("config.json", "generation_config.json"):
            self.assertEqual(json.loads((self.folder / "run" / name).read_text())["eos_token_id"], end)
        tokenizer.unlink()
        self.said("--model", "run", "--prompt", "", "--max-new-tokens", 5)

    def test_an_instruction_is_written_as_fine_tuning_writes_it(self):
        self.train("run", F32, "model.max_seq_len=512")
        prompt = ("Below is an instruction that describes a task, paired with an input that provides further context. Write a "
                  "response that appropriately completes the request.\n\n### Instruction:\nAdd.\n\n### Input:\n1 2\n\n"
                  "### Response:\n")
        self.assertEqual(self.said("--model", "run", "--instruction", "Add.", "--input", "1 2"),
                         self.said("--model", "run", "--prompt", prompt))

    def test_every_refusal_is_one_line_with_a_way_out(self):
        model = GOLDEN / "hf_llama"
        cases = {
            (64, "--top-p: 0 is not above 0"): ["--model", model, "--prompt", "a", "--top-p", 0],
            (64, "0 of --prompt, --instruction and --eval are given"): ["--model", model],
            (64, "--model is required"): ["--prompt", "a"],
            (64, "--seq-len belongs to --eval"): ["--model", model, "--prompt", "a", "--seq-len", 4],
            (74, "nowhere: has no model.safetensors"): ["--model", "nowhere", "--prompt", "a"],
            (78, "name one with --tokenizer FILE"): ["--model", model, "--prompt", "a"],
            (78, "has 256 ids, but the model of"): ["--model", model, "--prompt", "a", "--tokenizer", "byte"],
            (78, "--seq-len: 4000 is more than the model's"): ["--model", model, "--eval", self.text(), "--seq-len", 4000],
        }
        for (code, text), arguments in cases.items():
            found, cause = self.refused(*arguments)
            self.assertEqual(found, code, cause)
            self.assertIn(text, cause)
        self.train("run", F32)
        code, cause = self.refused("--model", "run", "--prompt", "x" * 32)
        self.assertEqual(code, 78)
        self.assertIn("the prompt has 32 tokens, but the model has 32 positions", cause)
        code, cause = self.refused("--model", "run", "--eval", self.write("one.txt", "a"))
        self.assertEqual(code, 65)
        self.assertIn("the text has 1 tokens, and a loss needs 2", cause)
        shutil.copytree(self.folder / "run", self.folder / "cut")
        weights = self.folder / "cut/model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1])
        self.assertEqual(self.refused("--model", "cut", "--prompt", "a")[0], 65)

    def test_the_pages_commands_run(self):
        os.symlink(program.ROOT / "docs", self.folder / "docs")
        os.symlink(program.ROOT / "configs", self.folder / "configs")
        (self.folder / "build").mkdir()
        for name in ("llm-train", "llm-generate"):
            os.symlink(program.PROGRAM.parent / name, self.folder / "build" / name)
        small = {"LLM_TRAINING__MAX_STEPS": "2", "LLM_TRAINING__WARMUP_STEPS": "1", "LLM_MODEL__NUM_LAYERS": "1",
                 "LLM_DATA__DATASET_PATH": "docs/*.md"}
        blocks = re.findall(r"^```sh\n(.*?)^```", (program.ROOT / "docs/generate.md").read_text(), re.M | re.S)
        self.assertGreaterEqual(len(blocks), 2)
        for block in blocks:
            done = subprocess.run(["bash", "-euo", "pipefail", "-c", block], cwd=self.folder, capture_output=True, timeout=100,
                                  stdin=subprocess.DEVNULL, env=self.environment | small)
            self.assertEqual(done.returncode, 0, done)


if __name__ == "__main__":
    program.main()
