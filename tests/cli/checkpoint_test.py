"""Checkpoints of whole runs: resumed, damaged, moved to other layouts, and read by a reader that uses nothing of the program."""
import json
import os
import pathlib
import re
import signal
import struct
import subprocess
import sys
import time
import zlib

import program

FULL = os.environ.get("LLM_TEST_FULL") == "1"
CHECKPOINT = pathlib.Path(sys.argv.pop(3)).resolve()
STEP = ["training.max_steps=6", "model.dropout=0.1", "training.batch_size=4", "distributed.pp_n_microbatches=4"]
EVERY_2 = ["checkpoint.save_interval_steps=2"]
# Two ranks with the partition that one rank has, where it can be: four microbatches of one sample.
HALF = ["training.batch_size=2", "distributed.pp_n_microbatches=2"]
LAYOUTS = {
    "dp": [*HALF, "distributed.parallel_strategy=ddp"],
    "zero1": [*HALF, "distributed.parallel_strategy=zero", "checkpoint.state_dict_type=sharded"],
    "zero3": [*HALF, "distributed.parallel_strategy=zero", "distributed.zero_stage=3"],
    "pp": ["distributed.parallel_strategy=pp", "checkpoint.state_dict_type=sharded"]}
BOX = re.compile(r"^(.*)\[(\d+):(\d+)(?:,(\d+):(\d+))?\]$")


def read_tensors(path):
    """{name: (shape, values)} of a safetensors file of float32, from its description."""
    data = path.read_bytes()
    (n,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + n])
    header.pop("__metadata__")
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        assert entry["dtype"] == "F32"
        tensors[name] = (entry["shape"], struct.unpack(f"<{(end - begin) // 4}f", data[8 + n + begin:8 + n + end]))
    return tensors


def read_checkpoint(folder):
    """({name: (shape, {place: value})}, manifest): every byte is held against the manifest first."""
    text = (folder / "manifest.json").read_text()
    manifest = json.loads(text)
    body, _, _ = text.rpartition(',"crc32":"')
    assert f"{zlib.crc32(body.encode()):08x}" == manifest["crc32"]
    whole, shapes = {}, {}
    for file in manifest["files"]:
        data = (folder / file["name"]).read_bytes()
        assert (len(data), f"{zlib.crc32(data):08x}") == (file["bytes"], file["crc32"]), file
        if not file["name"].endswith(".safetensors"):
            continue
        for name, (shape, values) in read_tensors(folder / file["name"]).items():
            box = BOX.match(name)
            rows = columns = 0
            if box:
                name, rows, columns = box[1], int(box[2]), int(box[4] or 0)
            width = shape[1] if len(shape) == 2 else 1
            into = whole.setdefault(name, {})
            for i, value in enumerate(values):
                place = (rows + i // width, columns + i % width)
                assert place not in into, (name, place)
                into[place] = value
            ends = shapes.setdefault(name, [0, 0])
            shapes[name] = [max(ends[0], rows + shape[0]), max(ends[1], columns + width)]
    for name, (n_rows, n_columns) in shapes.items():
        assert len(whole[name]) == n_rows * n_columns, name
    return whole, manifest


class Checkpoints(program.ProgramTest):
    def saved(self, run, step):
        return self.folder / run / "checkpoints" / f"step-{step:08}"

    def steps(self, run):
        return sorted(int(p.name[5:]) for p in (self.folder / run / "checkpoints").glob("step-????????"))

    def tool(self, *arguments):
        done = subprocess.run([str(CHECKPOINT), *map(str, arguments)], cwd=self.folder, text=True, capture_output=True, timeout=60)
        return done.returncode, done.stdout + done.stderr

    def base(self, *arguments):
        return self.train("base", *STEP, *EVERY_2, *arguments)

    def resumed(self, run, checkpoint, *arguments, ranks=0, **more):
        return self.train(run, *STEP, *EVERY_2, f"checkpoint.resume_from_checkpoint={checkpoint}", *arguments, ranks=ranks, **more)

    def refused(self, *arguments, ranks=0):
        data = f"data.dataset_path={self.text()}"
        done = self.llm_train(*program.TINY, data, *STEP, "logging.run_dir=refused", *arguments, ranks=ranks)
        self.assertEqual(len(done.causes()), 1, done)
        self.assertFalse((self.folder / "refused").exists(), done)
        return done.code, done.causes()[0]

    def test_a_resumed_run_has_the_bits_of_one_that_was_not_interrupted(self):
        done = self.base()
        self.assertRegex(done.out, r"saved step 4: base/checkpoints/step-00000004, 0\.5 MB in [\d.]+ s, training waited [\d.]+ s")
        self.assertEqual([line["step"] for line in self.metrics("base", "checkpoint")], [2, 4, 6])
        done = self.resumed("again", self.saved("base", 4))
        self.assertIn("step 4 of 6, saved by dp 1, pp 1, tp 1, zero_stage 0", done.out)
        self.assertEqual(self.losses("again"), self.losses("base")[4:])
        self.assertTrue(self.weights("again") == self.weights("base"))
        self.assertEqual(self.tool("diff", self.saved("base", 6), self.saved("again", 6)), (0, "identical: 111 tensors\n"))

    def test_a_run_moves_between_layouts_with_its_bits(self):
        self.base()
        for layout, fields in LAYOUTS.items():
            if not FULL and layout not in ("zero1", "pp"):
                continue
            self.resumed(layout, self.saved("base", 2), *fields, ranks=2)
            self.assertEqual(self.losses(layout), self.losses("base")[2:], layout)
            self.assertTrue(self.weights(layout) == self.weights("base"), layout)
            self.resumed(f"{layout}-back", self.saved(layout, 4))
            self.assertEqual(self.losses(f"{layout}-back"), self.losses("base")[4:], layout)
            code, text = self.tool("diff", self.saved("base", 6), self.saved(f"{layout}-back", 6))
            self.assertEqual((code, text), (0, "identical: 111 tensors\n"), layout)

    def test_a_stream_goes_on_where_it_stopped(self):
        stream = ["--task", "stream_lm", "data.shuffle_buffer=5", "data.steps_per_epoch=100"]
        self.base(*stream)
        for step in (2, 4):
            self.resumed(f"from-{step}", self.saved("base", step), *stream)
            self.assertEqual(self.losses(f"from-{step}"), self.losses("base")[step:])

    def test_a_run_that_a_signal_stopped_goes_on_in_its_own_folder(self):
        long = [*program.TINY, f"data.dataset_path={self.text()}", "training.max_steps=1000000", "training.epochs=1000000",
                "training.scheduler_type=constant", "checkpoint.resume_from_checkpoint=auto", "logging.run_dir=run"]
        process = self.start(*long)
        metrics = self.folder / "run/metrics.jsonl"
        program.wait_until(lambda: metrics.exists() and metrics.read_text().count('"kind":"step"') >= 3)
        os.kill(process.pid, signal.SIGTERM)
        done = self.finish(process, timeout=20)
        self.assertEqual(done.code, 75, done)
        self.assertIn("no checkpoint in run/checkpoints: starting afresh", done.out)
        (step,) = self.steps("run")
        self.assertEqual(len(self.metrics("run")), step)
        before = (self.folder / "run/metrics.jsonl").read_bytes()
        rest = [f"training.max_steps={step + 3}", "checkpoint.resume_from_checkpoint=latest"]
        again = self.llm_train(*long, *rest)
        self.assertEqual((again.code, again.causes()), (0, []), again)
        self.assertEqual((self.folder / "run/metrics.jsonl").read_bytes(), before)
        lines = [json.loads(line) for line in (self.folder / f"run/metrics-from-step-{step:08}.jsonl").read_text().splitlines()]
        self.train("whole", "training.scheduler_type=constant", f"training.max_steps={step + 3}", "training.epochs=1000000")
        self.assertEqual([line["loss"] for line in lines if line["kind"] == "step"], self.losses("whole")[step:])
        self.assertTrue(self.weights("run") == self.weights("whole"))

    def test_an_independent_reader_reads_every_kind(self):
        self.base()
        full, manifest = read_checkpoint(self.saved("base", 6))
        self.assertEqual((manifest["step"], manifest["n_updates"], manifest["n_samples"]), (6, 6, 24))
        final = program.read_safetensors(self.weights("base"))
        self.assertEqual(len(full), 3 * len(final))
        for name, (shape, values) in final.items():
            width = shape[1] if len(shape) == 2 else 1
            self.assertTrue(all(full[name][divmod(i, width)] == value for i, value in enumerate(values)), name)
        for layout in ("zero1", "pp") if FULL else ("pp",):
            self.train(layout, *STEP, *EVERY_2, *LAYOUTS[layout], ranks=2)
            sharded, manifest = read_checkpoint(self.saved(layout, 6))
            self.assertEqual([f["name"] for f in manifest["files"]], ["rank-00000.safetensors", "rank-00001.safetensors", "config.yaml"])
            self.assertTrue(sharded == full, layout)

    def test_a_sharded_checkpoint_becomes_a_folder_of_weights(self):
        small = ["model.use_rope=false", "model.pos_encoding_learned=true", "model.lm_head_bias=false", "model.tie_embeddings=true"]
        self.train("run", *STEP, *EVERY_2, *small, *LAYOUTS["zero1"], ranks=2)
        code, text = self.tool("export", self.saved("run", 6), "exported")
        self.assertEqual((code, text), (0, "exported: written\n"))
        self.assertTrue((self.folder / "exported/model.safetensors").read_bytes() == self.weights("run"))
        self.assertEqual(json.loads((self.folder / "exported/config.json").read_text())["model_type"], "gpt2")
        self.train("tuned", "model.init_from=exported", *STEP, *small)
        self.assertEqual(self.tool("diff", "run", "exported"), (0, "identical: 28 tensors\n"))
        code, text = self.tool("export", self.saved("run", 6), "exported")
        self.assertEqual((code, text), (74, "error: exported is there already; name a folder that is not\n"))

    def test_the_tool_says_what_a_checkpoint_is_and_where_two_differ(self):
        self.base()
        code, text = self.tool("show", "--tensors", self.saved("base", 4))
        self.assertEqual(code, 0, text)
        self.assertIn("step 4, 4 updates, 16 samples in steps of 4", text)
        self.assertIn("(256, 32)  lm_head.weight.exp_avg_sq", text)
        self.assertEqual(self.tool("verify", self.saved("base", 4))[0], 0)
        code, text = self.tool("diff", self.saved("base", 4), self.saved("base", 6))
        self.assertEqual(code, 1)
        self.assertRegex(text, r"different: \d+ of 111 tensors by more than 1e-05, the first lm_head\.bias: 256 of 256 elements, .* first \[0\]: ")
        code, text = self.tool("diff", "--tolerance", "10", self.saved("base", 4), self.saved("base", 6))
        self.assertEqual((code, text.split(":")[0]), (0, "rounding"))
        self.assertEqual(self.tool()[0], 64)
        self.assertEqual(self.tool("verify", "nowhere")[0], 74)

    def test_the_newest_and_the_best_are_kept(self):
        self.base("checkpoint.keep_last_n=1", "training.val_interval_steps=1", "training.max_steps=9", "training.lr=0.1")
        losses = {line["step"]: line["loss"] for line in self.metrics("base", "validation")}
        self.assertEqual(self.steps("base"), sorted({min(losses, key=losses.get), 9}))
        manifest = json.loads((self.saved("base", 9) / "manifest.json").read_text())
        self.assertEqual(manifest["validation_loss"], losses[9])

    def test_a_damaged_checkpoint_is_named_and_never_loaded(self):
        self.base()
        path = self.saved("base", 6) / "optimizer.safetensors"
        data = bytearray(path.read_bytes())
        data[-5] ^= 4
        path.write_bytes(data)
        folder = f"checkpoint.checkpoint_dir={self.folder}/base/checkpoints"
        for asked in ("latest", self.saved("base", 6)):
            code, cause = self.refused(folder, f"checkpoint.resume_from_checkpoint={asked}", ranks=2)
            self.assertEqual(code, 65)
            self.assertIn("step-00000006/optimizer.safetensors: damaged: its checksum is ", cause)
        self.assertEqual(self.tool("verify", self.saved("base", 6))[0], 65)
        done = self.resumed("fallen", "auto", folder)
        self.assertIn("step-00000006 is passed over: ", done.err)
        self.assertIn("step-00000004, step 4 of 6", done.out)
        self.assertEqual(self.losses("fallen"), self.losses("base")[4:])
        self.assertEqual(self.tool("verify", self.saved("base", 6))[0], 0, "it was saved again")
        for step in (2, 4, 6):
            os.truncate(self.saved("base", step) / "model.safetensors", 1000)
        code, cause = self.refused(folder, "checkpoint.resume_from_checkpoint=auto")
        self.assertEqual(code, 65)
        self.assertIn("no checkpoint is whole: ", cause)

    def test_what_cannot_be_resumed_is_refused_with_a_way_out(self):
        self.base()
        folder = f"checkpoint.checkpoint_dir={self.folder}/base/checkpoints"
        resume = f"checkpoint.resume_from_checkpoint={self.saved('base', 4)}"
        for arguments, code, text in (
                ([folder], 78, "holds 3 checkpoints of an earlier start, up to step 6; set checkpoint.resume_from_checkpoint: auto"),
                (["checkpoint.resume_from_checkpoint=nowhere"], 74, "nowhere is no checkpoint: it has no manifest.json"),
                (["checkpoint.resume_from_checkpoint=base/checkpoints"], 74, "name one in it, as base/checkpoints/step-00000006"),
                (["checkpoint.resume_from_checkpoint=latest", "checkpoint.checkpoint_dir=empty"], 74,
                 "latest, but empty holds no checkpoint; auto starts afresh"),
                ([resume, "model.num_heads=4"], 78, "model.num_heads: 4 contradicts the checkpoint"),
                ([resume, "training.batch_size=8"], 78, "a step of 8 samples does not go on from the checkpoint"),
                ([resume, "training.seed=7"], 65, "training.seed was 42 when the checkpoint was saved and is 7 now")):
            if "seed" in arguments[-1]:
                done = self.llm_train(*program.TINY, f"data.dataset_path={self.text()}", *STEP, "logging.run_dir=other", *arguments)
                self.assertEqual((done.code, len(done.causes())), (code, 1), done)
                self.assertIn(text, done.causes()[0])
                continue
            refused, cause = self.refused(*arguments)
            self.assertEqual(refused, code, arguments)
            self.assertIn(text, cause)
        data = f"data.dataset_path={self.text()}"
        done = self.llm_train(*program.TINY, data, "checkpoint.resume_from_checkpoint=auto")
        self.assertEqual(done.code, 78, done)
        self.assertIn("checkpoint.checkpoint_dir and logging.run_dir are not set", done.causes()[0])

    def test_a_full_disk_ends_the_run_with_one_line_and_leaves_the_last_checkpoint(self):
        # MPI's own files stay below the limit that the second file of a checkpoint reaches.
        wide = ["model.hidden_size=256", "model.num_layers=4", "training.scheduler_type=constant"]
        self.base("training.max_steps=2", *wide)
        command = self.command([*program.TINY, f"data.dataset_path={self.text()}", *STEP, *wide, *EVERY_2, "logging.run_dir=base",
                                "checkpoint.resume_from_checkpoint=latest"])
        done = subprocess.run(["bash", "-c", 'ulimit -f 20000; exec "$@"', "_", *command], cwd=self.folder, text=True,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=60, env=self.environment)
        self.assertEqual(done.returncode, 74, done)
        causes = [line for line in done.stderr.splitlines() if line.startswith("error:")]
        self.assertEqual(len(causes), 1, done)
        self.assertIn("step-00000004.tmp/optimizer.safetensors: File too large", causes[0])
        self.assertEqual(self.steps("base"), [2])
        self.assertEqual(self.tool("verify", self.saved("base", 2))[0], 0)
        self.train("whole", *STEP, *wide)
        done = self.llm_train(*program.TINY, f"data.dataset_path={self.text()}", *STEP, *wide, *EVERY_2, "logging.run_dir=base",
                              "checkpoint.resume_from_checkpoint=auto")
        self.assertEqual(done.code, 0, done)
        self.assertTrue(self.weights("base") == self.weights("whole"))
        self.assertEqual(list((self.folder / "base/checkpoints").glob("*.tmp")), [])

    def test_a_run_that_is_killed_again_and_again_ends_with_the_bits_of_one_that_is_not(self):
        arguments = [*program.TINY, f"data.dataset_path={self.text()}", "training.max_steps=400", "checkpoint.save_interval_steps=3",
                     "checkpoint.keep_last_n=2", "checkpoint.resume_from_checkpoint=auto", "training.run_validation=false"]
        whole = self.llm_train(*arguments, "checkpoint.save_interval_steps=0", "logging.run_dir=whole")
        self.assertEqual(whole.code, 0, whole)
        newest, killed = 0, 0
        for n in range(100 if FULL else 4):
            process = self.start(*arguments, "logging.run_dir=run")
            exists = (self.folder / "run/checkpoints").exists
            program.wait_until(lambda: process.poll() is not None or exists() and max(self.steps("run"), default=0) > newest)
            time.sleep(n * 7919 % 30 / 1000)  # some moment of the next steps and saves
            process.kill()
            if self.finish(process).code == 0:
                break
            killed += 1
            newest = max(self.steps("run"))
            self.assertEqual(self.tool("verify", self.saved("run", newest))[0], 0)
        self.assertGreater(killed, 0)
        done = self.llm_train(*arguments, "logging.run_dir=run")
        self.assertEqual((done.code, done.causes()), (0, []), done)
        self.assertTrue(self.weights("run") == self.weights("whole"))

    def test_the_pages_commands_run(self):
        page = (program.ROOT / "docs/checkpoints.md").read_text()
        for name in ("configs", "docs", "README.md", "STYLE.md"):
            os.symlink(program.ROOT / name, self.folder / name)
        (self.folder / "build").mkdir()
        os.symlink(program.PROGRAM, self.folder / "build/llm-train")
        os.symlink(CHECKPOINT, self.folder / "build/llm-checkpoint")
        (block,) = re.findall(r"^```sh\n(.*?)^```", page, re.M | re.S)
        small = {"LLM_MODEL__NUM_LAYERS": "1", "LLM_MODEL__HIDDEN_SIZE": "32", "LLM_TRAINING__WARMUP_STEPS": "1",
                 "LLM_DATA__DATASET_PATH": "docs/*.md", "LLM_TRAINING__EPOCHS": "100"}
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", block], cwd=self.folder, text=True, stdin=subprocess.DEVNULL,
                              capture_output=True, timeout=100, env=self.environment | small |
                              {"OMPI_MCA_hwloc_base_binding_policy": "none"})
        self.assertEqual(done.returncode, 0, done)
        self.assertIn("step 20 of 60, saved by dp 1", done.stdout)
        self.assertRegex(done.stdout, r"identical: \d+ tensors\n$")
        for section, name in re.findall(r"`(\w+)\.(\w+)`", page):
            if section in ("checkpoint", "training", "logging", "model") and name != "safetensors":
                self.assertIn(f"{section}.{name}", self.llm_train("--explain", f"{section}.{name}").out)


if __name__ == "__main__":
    program.main()
