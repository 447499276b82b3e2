"""Runs that start from a Hugging Face folder: the committed ones that an independent script wrote, and this program's own."""
import json
import os
import re
import shutil
import subprocess

import program

GOLDEN = program.ROOT / "tests" / "golden"
FIELDS = ["data.max_seq_len=8", "training.batch_size=4", "training.max_steps=3", "logging.progress=line",
          "optimization.use_amp=false"]
LAYOUTS = {
    "dp": ["distributed.parallel_strategy=ddp"],
    "pp": ["distributed.parallel_strategy=pp"],
    **{f"zero{n}": ["distributed.parallel_strategy=zero", f"distributed.zero_stage={n}"] for n in (1, 2, 3)}}


class InitFrom(program.ProgramTest):
    def run_from(self, folder, run, *arguments, ranks=0):
        done = self.llm_train(*FIELDS, f"model.init_from={folder}", f"data.dataset_path={self.tokens()}",
                              f"logging.run_dir={run}", *arguments, ranks=ranks)
        self.assertEqual((done.code, done.causes()), (0, []), done)
        return done

    def tokens(self):
        """A token file (llm.c's format) of ids below the golden models' 23."""
        ids = [(7 * i + i // 5) % 23 for i in range(4000)]
        header = [20240520, 1, len(ids)] + [0] * 253
        data = b"".join(x.to_bytes(4, "little") for x in header) + b"".join(x.to_bytes(2, "little") for x in ids)
        return self.write("tokens.bin", data)

    def refused(self, folder, *arguments):
        done = self.llm_train(*FIELDS, f"model.init_from={folder}", f"data.dataset_path={self.tokens()}",
                              "logging.run_dir=refused", *arguments)
        self.assertFalse((self.folder / "refused").exists(), done)
        self.assertEqual(len(done.causes()), 1, done)
        return done.code, done.causes()[0]

    def test_every_layout_trains_from_an_independent_checkpoint_as_one_rank_does(self):
        for name in ("hf_gpt2", "hf_mixtral", "hf_llama_sharded"):
            folder = GOLDEN / name
            done = self.run_from(folder, name, "training.batch_size=8", "distributed.pp_n_microbatches=2")
            self.assertIn(f"weights: {folder}, ", done.out)
            for layout, fields in LAYOUTS.items():
                batch = ["training.batch_size=8", "distributed.pp_n_microbatches=2"] if layout == "pp" else []
                run = f"{name}-{layout}"
                self.run_from(folder, run, *fields, *batch, ranks=2)
                self.assertEqual(self.losses(run), self.losses(name), run)
                self.assertTrue(self.weights(run) == self.weights(name), run)

    def test_tensor_parallel_ranks_train_from_a_checkpoint_as_one_rank_does(self):
        for name in ("hf_gpt2", "hf_llama_sharded"):
            self.run_from(GOLDEN / name, name)
            self.run_from(GOLDEN / name, f"{name}-tp", "distributed.parallel_strategy=tp", ranks=2)
            for one, two in zip(self.losses(name), self.losses(f"{name}-tp"), strict=True):
                self.assertAlmostEqual(one, two, delta=2e-6)

    def test_a_run_goes_on_from_the_weights_of_another(self):
        self.run_from(GOLDEN / "hf_llama", "first", "training.max_steps=40", "training.lr=0.01")
        self.run_from("first", "second", ranks=2)
        first, second = self.losses("first"), self.losses("second")
        self.assertLess(first[-1], first[0] - 0.3)
        self.assertLess(second[0], (first[0] + first[-1]) / 2)
        config = json.loads((self.folder / "second" / "config.json").read_text())
        self.assertEqual((config["eos_token_id"], config["rope_theta"], config["rope_parameters"]["rope_theta"]),
                         ([2, 3], 500.0, 500.0))
        generation = json.loads((self.folder / "second" / "generation_config.json").read_text())
        self.assertEqual((generation["bos_token_id"], generation["eos_token_id"]), (1, [2, 3]))

    def test_a_tokenizer_is_kept_beside_the_weights_and_a_plan_knows_the_folders_model(self):
        folder = self.folder / "own"
        shutil.copytree(GOLDEN / "hf_gpt2", folder)
        self.write("own/tokenizer_config.json", '{"x": 1}')
        self.run_from(folder, "run")
        self.assertEqual((self.folder / "run" / "tokenizer_config.json").read_text(), '{"x": 1}')
        done = self.llm_train("--plan", *FIELDS, f"model.init_from={folder}", f"data.dataset_path={self.tokens()}")
        self.assertEqual(done.code, 0, done)
        self.assertIn("4480 parameters in 28 tensors", done.out)

    def test_the_pages_commands_run(self):
        for name in ("configs", "docs", "README.md"):
            os.symlink(program.ROOT / name, self.folder / name)
        (self.folder / "build").mkdir()
        os.symlink(program.PROGRAM, self.folder / "build/llm-train")
        blocks = re.findall(r"^```sh\n(.*?)^```", (self.folder / "docs/hugging-face.md").read_text(), re.M | re.S)
        self.assertEqual(len(blocks), 1)
        small = {"LLM_TRAINING__MAX_STEPS": "2", "LLM_MODEL__NUM_LAYERS": "1", "LLM_TRAINING__WARMUP_STEPS": "1",
                 "LLM_DATA__DATASET_PATH": "*.md"}
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", blocks[0]], cwd=self.folder, text=True,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=60, env=self.environment | small |
                              {"OMPI_MCA_hwloc_base_binding_policy": "none"})
        self.assertEqual(done.returncode, 0, done)
        self.assertTrue((self.folder / "runs/tuned/config.json").exists())

    def test_what_does_not_fit_is_refused_before_the_run_has_a_folder(self):
        folder = self.folder / "own"
        shutil.copytree(GOLDEN / "hf_gpt2", folder)
        code, cause = self.refused(folder, "model.hidden_size=32")
        self.assertEqual(code, 78)
        self.assertIn("model.hidden_size: 32 contradicts model.init_from, whose model has 16", cause)
        code, cause = self.refused("nowhere")
        self.assertEqual(code, 74)
        self.assertIn("nowhere/config.json", cause)
        weights = folder / "model.safetensors"
        whole = weights.read_bytes()
        weights.write_bytes(whole[:-1])
        code, cause = self.refused(folder)
        self.assertEqual(code, 65)
        self.assertRegex(cause, r"model\.safetensors: tensor .* are not inside the \d+ bytes of data: if the file was cut short")
        weights.write_bytes(whole.replace(b"h.1.ln_1.bias", b"h.1.ln_7.bias"))
        code, cause = self.refused(folder)
        self.assertEqual(code, 65)
        self.assertIn('"h.1.ln_1.bias" of the model is not among', cause)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"model_type": "bert"}))
        code, cause = self.refused(folder)
        self.assertEqual(code, 65)
        self.assertIn('model_type: "bert" is not one of gpt2, llama, mixtral', cause)


if __name__ == "__main__":
    program.main()
