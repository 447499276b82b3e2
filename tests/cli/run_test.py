"""Whole runs of a tiny model with 1, 2 and 3 ranks: what they write, and that the layout changes no number."""
import json
import math
import os
import pty
import struct
import subprocess

import program

STEP_KEYS = ["kind", "step", "loss", "grad_norm", "lr", "n_valid_tokens", "n_samples", "skipped", "seconds",
             "tokens_per_second", "gflops"]
SHAPES = {"model.embed_tokens.weight": [256, 32], "model.norm.weight": [32], "lm_head.weight": [256, 32],
          "model.layers.1.self_attn.q_proj.weight": [32, 32], "model.layers.1.self_attn.k_proj.weight": [16, 32],
          "model.layers.1.mlp.gate_proj.weight": [64, 32], "model.layers.1.mlp.down_proj.weight": [32, 64],
          "model.layers.1.input_layernorm.weight": [32], "model.layers.1.post_attention_layernorm.weight": [32]}
LLAMA = ["model.norm_impl=rms_norm", "model.use_glu=true", "model.mlp_activation=silu", "model.qkv_bias=false",
         "model.mlp_bias=false", "model.lm_head_bias=false", "model.num_kv_heads=1", "model.intermediate_size=64"]
GPT2 = ["model.use_rope=false", "model.pos_encoding_learned=true", "model.mlp_activation=gelu_tanh",
        "model.lm_head_bias=false", "model.tie_embeddings=true"]


class Runs(program.ProgramTest):
    def test_metrics_configuration_and_weights_of_one_two_and_three_ranks(self):
        for ranks in (1, 2, 3):
            with self.subTest(ranks=ranks):
                run = f"run-{ranks}"
                done = self.train(run, *LLAMA, "training.val_interval_steps=3", ranks=ranks)
                steps, validations = self.metrics(run), self.metrics(run, "validation")
                self.assertEqual([list(line) for line in steps], [STEP_KEYS] * 6)
                self.assertEqual([line["step"] for line in steps], [1, 2, 3, 4, 5, 6])
                self.assertEqual([line["n_samples"] for line in steps], [2 * ranks * n for n in range(1, 7)])
                self.assertEqual([line["n_valid_tokens"] for line in steps], [64 * ranks] * 6)
                numbers = [line[key] for line in steps for key in STEP_KEYS[2:] if key != "skipped"]
                self.assertTrue(all(math.isfinite(x) and x > 0 for x in numbers), steps)
                self.assertAlmostEqual(steps[0]["loss"], math.log(256), delta=0.2)
                self.assertLess(steps[-1]["loss"], steps[0]["loss"])
                self.assertEqual([line["step"] for line in validations], [3, 6])
                # 20,000 bytes are 624 samples of 32 tokens and a label, a tenth of them is kept for validation.
                self.assertEqual({line["n_tokens"] for line in validations}, {62 * 32})
                for part in [f"{ranks} rank", f"global batch {2 * ranks} = microbatch 2 x 1 x dp {ranks}", "step 6/6",
                             "first step after", "validation loss", "sample:", f"files in {run}: model.safetensors"]:
                    self.assertIn(part, done.out)
                tensors = program.read_safetensors(self.weights(run))
                self.assertEqual(len(tensors), 3 + 2 * 9)
                self.assertEqual({name: tensors[name][0] for name in SHAPES}, SHAPES)
                self.assertTrue(all(math.isfinite(x) for _, values in tensors.values() for x in values))
                config = json.loads((self.folder / run / "config.json").read_text())
                self.assertEqual((config["model_type"], config["num_key_value_heads"]), ("llama", 1))

    def test_gpt2_weights_have_the_names_that_other_tools_read(self):
        self.train("run", *GPT2)
        tensors = program.read_safetensors(self.weights("run"))
        for name, shape in {"wte.weight": [256, 32], "wpe.weight": [32, 32], "ln_f.bias": [32],
                            "h.1.attn.c_attn.weight": [32, 96], "h.1.mlp.c_proj.weight": [128, 32]}.items():
            found = [t[0] for full, t in tensors.items() if full in (name, f"transformer.{name}")]
            self.assertEqual(found, [shape], name)
        self.assertEqual(len(tensors), 2 + 2 + 2 * 12)

    def test_the_written_configuration_starts_the_same_run_again(self):
        self.train("run")
        first = (self.folder / "run/config.yaml").read_text()
        self.assertIn("max_steps: 6  # command line", first)
        done = self.llm_train("--config-path", "run/config.yaml", "logging.run_dir=again")
        self.assertEqual(done.code, 0, done)
        self.assertEqual(self.weights("again"), self.weights("run"))
        values = [[line.split("  #")[0] for line in text.splitlines() if "run_dir" not in line]
                  for text in (first, (self.folder / "again/config.yaml").read_text())]
        self.assertEqual(*values)

    def test_one_seed_gives_the_same_bits_twice_and_another_seed_others(self):
        dropout = "model.dropout=0.1"
        self.train("a", dropout, ranks=2)
        self.train("b", dropout, ranks=2)
        self.train("c", dropout, "training.seed=43", ranks=2)
        self.assertEqual(self.losses("a"), self.losses("b"))
        self.assertEqual(self.weights("a"), self.weights("b"))
        self.assertNotEqual(self.losses("a"), self.losses("c"))

    def test_one_two_and_four_ranks_give_the_same_bits_at_one_global_batch(self):
        batch = ["training.global_batch_size=8", "training.batch_size=1", "model.dropout=0.1"]
        for ranks in (1, 2, 4):
            self.train(f"run-{ranks}", *batch, ranks=ranks)
            self.assertEqual(self.losses(f"run-{ranks}"), self.losses("run-1"))
            self.assertTrue(self.weights(f"run-{ranks}") == self.weights("run-1"), f"{ranks} ranks")

    def test_three_ranks_agree_with_one_within_a_millionth(self):
        batch = ["training.global_batch_size=12", "training.batch_size=1"]
        for ranks in (1, 3):
            self.train(f"run-{ranks}", *batch, ranks=ranks)
        one, three = (program.read_safetensors(self.weights(f"run-{n}")) for n in (1, 3))
        pairs = [(a, b) for name in one for a, b in zip(one[name][1], three[name][1])]
        distance = math.sqrt(sum((a - b) ** 2 for a, b in pairs) / sum(a * a for a, _ in pairs))
        self.assertLess(distance, 1e-6)

    def test_bucket_size_and_the_flush_of_microbatches_change_no_bit(self):
        self.train("a", "training.batch_size=4", "distributed.pp_n_microbatches=4", ranks=2)
        self.train("b", "training.batch_size=4", "distributed.pp_n_microbatches=4", "distributed.bucket_bytes=4",
                   ranks=2)
        self.train("c", "training.batch_size=1", "optimization.gradient_accumulation_steps=4", ranks=2)
        self.assertEqual(self.weights("a"), self.weights("b"))
        self.assertEqual(self.weights("a"), self.weights("c"))

    def test_threads_of_a_rank_change_no_bit(self):
        for threads in (1, 2, 3):
            self.train(f"run-{threads}", "training.batch_size=4", f"distributed.threads_per_rank={threads}", ranks=2)
            self.assertEqual(self.weights(f"run-{threads}"), self.weights("run-1"))

    def test_progress_auto_is_a_bar_where_the_launcher_has_a_terminal(self):
        arguments = [*program.TINY, f"data.dataset_path={self.text()}", "logging.run_dir=run", "logging.progress=auto"]
        for ranks in (0, 2):
            with self.subTest(ranks=ranks):
                controller, terminal = pty.openpty()
                process = subprocess.Popen(self.command(arguments, ranks), cwd=self.folder, env=self.environment,
                                           stdin=subprocess.DEVNULL, stdout=terminal, stderr=subprocess.DEVNULL)
                os.close(terminal)
                shown = b""
                while True:
                    try:
                        part = os.read(controller, 4096)
                    except OSError:  # the last writer has closed its end
                        break
                    if not part:
                        break
                    shown += part
                os.close(controller)
                self.assertEqual(process.wait(timeout=60), 0)
                self.assertIn(b"[====", shown)
            (self.folder / "run").rename(self.folder / f"run-{ranks}")
        self.assertNotIn("[====", self.train("piped", "logging.progress=auto", ranks=2).out)

    def test_a_run_is_stopped_by_neither_terminal_nor_progress_setting(self):
        for progress in ("auto", "bar", "off"):
            done = self.train(f"run-{progress}", f"logging.progress={progress}", ranks=2)
            self.assertEqual(done.out == "", progress == "off", done.out)
            self.assertEqual(self.weights(f"run-{progress}"), self.weights("run-auto"))
        self.assertIn("[====", self.train("bar", "logging.progress=bar").out)


class Data(program.ProgramTest):
    def test_text_json_lines_and_token_files_of_one_content_give_one_run(self):
        text = self.text().read_text()
        self.write("lines.jsonl", json.dumps({"text": text}) + "\n")
        tokens = text.encode()
        self.write("llmc.bin", struct.pack("<256i", 20240520, 1, len(tokens), *[0] * 253) +
                   struct.pack(f"<{len(tokens)}H", *tokens))
        self.write("nanogpt.bin", struct.pack(f"<{len(tokens)}H", *tokens))
        self.train("text")
        for name in ("lines.jsonl", "llmc.bin", "nanogpt.bin"):
            self.train(name + "-run", f"data.dataset_path={name}")
            self.assertEqual(self.losses("text")[0] > 5, True)
            if name == "lines.jsonl":
                self.assertEqual(self.weights(name + "-run"), self.weights("text"))
        self.assertEqual(self.weights("llmc.bin-run"), self.weights("nanogpt.bin-run"))
        self.assertEqual(self.losses("llmc.bin-run"), self.losses("text"))

    def test_files_by_glob_are_joined_and_a_field_of_json_lines_can_be_named(self):
        for i in range(3):
            self.write(f"book/{i}.txt", self.text().read_text()[i * 5000:(i + 1) * 5000])
        self.assertIn("15002 tokens", self.train("glob", "data.dataset_path=book/*.txt").out)
        self.write("lines.jsonl", json.dumps({"body": self.text().read_text()}) + "\n")
        self.train("field", "data.dataset_path=lines.jsonl", "data.text_column=body")

    def test_the_second_start_takes_the_cached_tokens_and_an_edited_file_does_not(self):
        self.train("first")
        (cache,) = (self.folder / "cache").rglob("cache.json")
        before = os.stat(cache).st_mtime_ns
        self.train("second", ranks=2)
        self.assertEqual(os.stat(cache).st_mtime_ns, before)
        self.write("text.txt", "x" + (self.folder / "text.txt").read_text())
        self.train("third")
        (cache,) = (self.folder / "cache").rglob("cache.json")
        self.assertNotEqual(os.stat(cache).st_mtime_ns, before)
        self.train("fourth", "data.cache_dir=mine")
        self.assertEqual(len(list((self.folder / "mine").rglob("cache.json"))), 1)

    def test_a_stream_learns_and_knows_no_ranks(self):
        batch = ["--task", "stream_lm", "data.steps_per_epoch=6", "training.global_batch_size=8",
                 "training.batch_size=1", "data.shuffle_buffer=64", "training.run_validation=false"]
        for ranks in (1, 2):
            self.train(f"run-{ranks}", *batch, ranks=ranks)
        self.assertLess(self.losses("run-1")[-1], self.losses("run-1")[0])
        self.assertEqual(self.weights("run-1"), self.weights("run-2"))
        self.assertEqual(list((self.folder / "cache").rglob("*.bin")), [], "a stream caches no tokens")

    def test_a_validation_set_of_its_own_is_measured_whole(self):
        self.text()
        self.text("held_out.txt", 3300)
        for ranks in (1, 3):
            self.train(f"run-{ranks}", "data.dataset_path=text.txt", "data.val_dataset_path=held_out.txt",
                       "training.global_batch_size=6", "training.batch_size=1", "training.val_interval_steps=6",
                       ranks=ranks)
            (line,) = self.metrics(f"run-{ranks}", "validation")
            self.assertEqual(line["n_tokens"], 103 * 32)
        one, three = (self.metrics(f"run-{n}", "validation")[0]["loss"] for n in (1, 3))
        self.assertAlmostEqual(one, three, places=5)


class Sources(program.ProgramTest):
    def test_the_environment_wins_over_the_file_and_the_command_line_over_both(self):
        self.write("file.yaml", "training:\n  max_steps: 2\n  batch_size: 1\n")
        base = [*[o for o in program.TINY if not o.startswith("training.")], f"data.dataset_path={self.text()}"]
        for name, env, override, n_steps in (("file", {}, [], 2), ("variable", {"LLM_TRAINING__MAX_STEPS": "3"}, [], 3),
                                             ("line", {"LLM_TRAINING__MAX_STEPS": "3"}, ["training.max_steps=4"], 4)):
            done = self.llm_train("--config-path", "file.yaml", *base, f"logging.run_dir={name}", *override, env=env,
                                  ranks=2)
            self.assertEqual(done.code, 0, done)
            self.assertEqual(len(self.metrics(name)), n_steps)

    def test_the_guides_variables_are_taken_and_gloo_means_mpi(self):
        done = self.train("run", env={"BACKEND": "gloo", "MASTER_ADDR": "node1", "NUM_NODES": "1"}, ranks=2)
        notes = [line for line in done.out.splitlines() if line.startswith("note:")]
        self.assertEqual(len([n for n in notes if "gloo means mpi" in n]), 1, notes)
        self.assertEqual(len([n for n in notes if "master_addr" in n]), 1, notes)

    def test_each_start_has_a_run_folder_of_its_own(self):
        for _ in range(2):
            done = self.llm_train(*program.TINY, f"data.dataset_path={self.text()}", "training.max_steps=1")
            self.assertEqual(done.code, 0, done)
        self.assertEqual(len(list((self.folder / "runs").glob("*/metrics.jsonl"))), 2)


if __name__ == "__main__":
    program.main()
