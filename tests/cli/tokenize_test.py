"""llm-tokenize: shards that an independent reader finds right, on any number of threads; its refusals; and llm-train on
the same tokenizer. Called with llm-train, the project's root and llm-tokenize."""
import array
import json
import pathlib
import signal
import subprocess
import sys
import time
import unittest

import program

TOKENIZE = pathlib.Path(sys.argv[3]).resolve()
GOLDEN = program.ROOT / "tests/golden"
GPT2 = GOLDEN / "tokenizer_gpt2.json"
END = 700  # <|endoftext|> there


def vectors():
    """(text, ids) of the texts that are UTF-8 and not empty."""
    for vector in json.loads((GOLDEN / "tokenizer_gpt2_vectors.json").read_text()):
        if vector["special"]:
            yield bytes.fromhex(vector["hex"]).decode(), vector["ids"]


def read_llmc(path):
    """The tokens of an llm.c file, by the format's description."""
    data = pathlib.Path(path).read_bytes()
    magic, version, count = array.array("i", data[:12])
    assert (magic, version) in ((20240520, 1), (20240801, 7)), (magic, version)
    tokens = array.array("H" if version == 1 else "I", data[1024:])
    assert len(tokens) == count, (len(tokens), count)
    return list(tokens)


class Tokenize(program.ProgramTest):
    def tokenize(self, *arguments, env=None):
        begin = time.monotonic()
        done = subprocess.run([str(TOKENIZE), *map(str, arguments)], cwd=self.folder, capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, timeout=60, env=self.environment | (env or {}))
        return program.Done(done.returncode, done.stdout, done.stderr, time.monotonic() - begin)

    def shards(self, *arguments, output="out"):
        done = self.tokenize("--tokenizer", GPT2, "--output", output, *arguments)
        self.assertEqual((done.code, done.causes()), (0, []), done)
        self.assertEqual(list(self.folder.rglob("*.unfinished")), [])
        return sorted(self.folder.glob(output + "-*.bin"))

    def lines(self):
        """A .jsonl file of the golden texts, and its tokens."""
        tokens = []
        with open(self.folder / "texts.jsonl", "w") as file:
            for text, ids in vectors():
                file.write(json.dumps({"text": text, "other": 1}) + "\n\n")
                tokens += ([END] if tokens else []) + ids
        return "texts.jsonl", tokens

    def test_json_lines_are_documents_with_the_end_token_between(self):
        name, tokens = self.lines()
        (shard,) = self.shards(name)
        self.assertEqual(read_llmc(shard), tokens)

    def test_text_files_are_documents_and_special_tokens_in_them_are_text(self):
        self.write("a.txt", "Hello world <|endoftext|>")
        self.write("b.txt", b"\xff\x00 x")
        (shard,) = self.shards("?.txt")
        tokens = read_llmc(shard)
        self.assertEqual(tokens.count(END), 1)
        self.assertLess(len(tokens), len("Hello world <|endoftext|>") + 5)

    def test_shards_do_not_depend_on_the_number_of_threads(self):
        name, tokens = self.lines()
        text = self.text(n_bytes=3_000_000)
        all_files = []
        for n in (1, 2, 5):
            files = self.shards("--threads", n, "--shard-tokens", 400_000, name, text, name, output=f"of-{n}-threads")
            all_files.append([path.read_bytes() for path in files])
        self.assertGreater(len(all_files[0]), 2)
        self.assertTrue(all(files == all_files[0] for files in all_files))
        together = [t for path in sorted(self.folder.glob("of-1-threads-*")) for t in read_llmc(path)]
        self.assertEqual(together[:len(tokens) + 1], tokens + [END])
        self.assertEqual([len(read_llmc(p)) for p in sorted(self.folder.glob("of-2-threads-*"))][:2], [400_000] * 2)

    def test_nanogpts_format_is_tokens_alone(self):
        name, tokens = self.lines()
        (shard,) = self.shards("--format", "nanogpt", name)
        self.assertEqual(list(array.array("H", shard.read_bytes())), tokens)

    def test_ids_beyond_two_bytes_are_stored_in_four_and_refused_for_nanogpt(self):
        data = json.loads(GPT2.read_text())
        data["added_tokens"] += [{"id": 710 + i, "content": f"<{i}>"} for i in range(65_000)]
        self.write("wide/tokenizer.json", json.dumps(data))
        self.write("a.txt", "<64999>a")
        done = self.tokenize("--tokenizer", "wide", "--output", "out", "a.txt")
        self.assertEqual(done.code, 0, done)
        self.assertEqual(read_llmc(self.folder / "out-00000.bin")[0], 65_709)
        done = self.tokenize("--tokenizer", "wide", "--output", "raw", "--format", "nanogpt", "a.txt")
        self.assertEqual((done.code, len(done.causes())), (64, 1), done)
        self.assertIn("65710 ids, more than 65536; write --format llmc", done.err)

    def test_bytes_are_a_tokenizer_too(self):
        self.write("a.txt", "abc")
        done = self.tokenize("--tokenizer", "byte", "--output", "new/folder/out", "a.txt")
        self.assertEqual(done.code, 0, done)
        self.assertEqual(read_llmc(self.folder / "new/folder/out-00000.bin"), [97, 98, 99])

    def test_a_bar_is_shown_on_a_terminal_and_lines_elsewhere(self):
        self.long_text()
        common = ["--tokenizer", GPT2, "--threads", "1", "text.txt", "--output"]
        bar = self.tokenize(*common, "a", env={"LLM_TRAIN_TTY": "1"})
        self.assertRegex(bar.err, r"\[#+\.*\] +\d+ % of 40.0 MB, [0-9.]+ MB/s, \d+ s left\x1b")
        line = self.tokenize(*common, "b")
        self.assertIn("% of 40.0 MB", line.err)
        self.assertNotIn("\x1b", line.err)
        self.assertEqual(self.tokenize(*common, "c", "--progress", "off").err, "")
        for done in (bar, line):
            self.assertRegex(done.out, r"^\d+ tokens of 705 ids from 1 files, 40.0 MB: [0-9.]+ bytes a token, ")

    def test_a_run_that_is_interrupted_leaves_no_shard(self):
        self.long_text()
        process = subprocess.Popen([str(TOKENIZE), "--tokenizer", str(GPT2), "--threads", "1", "--output", "out", "text.txt"],
                                   cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(self.end, process)
        program.wait_until(lambda: list(self.folder.glob("out-*")) or process.poll() is not None)
        process.send_signal(signal.SIGTERM)
        process.wait()
        if process.returncode != 0:  # else it was faster
            self.assertEqual(list(self.folder.glob("out-*.bin")), [])
            self.assertEqual(len(self.shards("text.txt")), 1, "a new start takes the place")

    def long_text(self):
        """Half a second's work, so that progress is shown."""
        self.write("text.txt", self.text("part.txt", n_bytes=1_000_000).read_bytes() * 40)

    def refusal(self, code, holds, *arguments):
        done = self.tokenize(*arguments)
        self.assertEqual((done.code, len(done.causes()), done.err.count("\n")), (code, 1, 1), done)
        for part in holds:
            self.assertIn(part, done.err)
        self.assertEqual(list(self.folder.glob("new-*")), [], "a refused run leaves nothing")

    def test_refusals_name_the_place_and_the_way_out(self):
        self.write("a.txt", "text")
        self.write("empty.txt", "")
        self.write("wrong.jsonl", '{"text": "a"}\n{"txt": "b"}\n')
        self.write("tokens.bin", bytes(8))
        self.write("bad.json", GPT2.read_text().replace('"ByteLevel"', '"Metaspace"'))
        self.write("there-00000.bin", bytes(8))
        common = ["--tokenizer", GPT2, "--output", "new"]
        self.refusal(64, ["--tokenizer is required"], "a.txt", "--output", "new")
        self.refusal(64, ["files is required"], *common)
        self.refusal(64, ["--frobnicate", "--help"], *common, "a.txt", "--frobnicate")
        self.refusal(64, ["--shard-tokens", "0"], *common, "a.txt", "--shard-tokens", "0")
        self.refusal(64, ["there-00000.bin is there already", "another name"],
                     "--tokenizer", GPT2, "--output", "there", "a.txt")
        self.refusal(65, ["files: ", "none*.txt"], *common, "none*.txt")
        self.refusal(65, ["the data has no text"], *common, "empty.txt")
        self.refusal(65, ["wrong.jsonl:2", "no field \"text\"", "txt"], *common, "wrong.jsonl")
        self.refusal(65, ["tokens.bin: is a token file already"], *common, "tokens.bin")
        self.refusal(65, ["bad.json: decoder: \"Metaspace\" is not ByteLevel", "tokenizer's own tools"],
                     "--tokenizer", "bad.json", "--output", "new", "a.txt")
        self.refusal(74, ["none/tokenizer.json", "No such file"],
                     "--tokenizer", "none/tokenizer.json", "--output", "new", "a.txt")
        self.refusal(74, ["/proc/new"], "--tokenizer", GPT2, "--output", "/proc/new/out", "a.txt")

    def test_llm_train_tokenizes_as_llm_tokenize_does(self):
        """The same losses from text, from a stream of it and from the shards; the sample is text."""
        text = self.text(n_bytes=30_000)
        self.shards(text)
        base = ["model.vocab_size=705", "training.run_validation=false", "data.shuffle=false", "training.max_steps=4"]
        hf = ["data.tokenizer_type=hf", f"data.tokenizer_path={GPT2}"]
        done = self.train("of-text", *base, *hf, f"data.dataset_path={text}")
        self.assertIn("token", done.out)
        self.train("of-shards", *base, *hf, "data.dataset_path=out-*.bin")
        self.train("of-stream", *base, *hf, f"data.dataset_path={text}", "--task", "stream_lm", "data.steps_per_epoch=4")
        self.assertEqual(self.losses("of-text"), self.losses("of-shards"))
        self.assertEqual(self.losses("of-text"), self.losses("of-stream"))
        self.train("of-ranks", *base, *hf, f"data.dataset_path={text}", ranks=2)

    def test_llm_train_notices_another_tokenizer_file(self):
        text = self.text(n_bytes=30_000)
        data = json.loads(GPT2.read_text())
        self.write("t/tokenizer.json", json.dumps(data))
        run = ["model.vocab_size=705", "data.tokenizer_type=hf", "data.tokenizer_path=t", f"data.dataset_path={text}"]
        self.train("first", *run)
        data["model"]["merges"] = data["model"]["merges"][:50]
        self.write("t/tokenizer.json", json.dumps(data))
        self.train("second", *run)
        self.assertNotEqual(self.losses("first"), self.losses("second"))
        self.assertEqual(len(list((self.folder / "cache/llm-train").glob("tokens-*"))), 2)

    def test_llm_train_refuses_what_does_not_fit(self):
        text = self.text()
        self.write("bad.json", "{")
        run = [*program.TINY, f"data.dataset_path={text}", "logging.run_dir=run", "data.tokenizer_type=hf"]
        for code, part, arguments in (
                (78, "hf needs a tokenizer.json; write data.tokenizer_path: FILE", []),
                (78, "model.vocab_size: 256 is less than the tokenizer's 705 ids", [f"data.tokenizer_path={GPT2}"]),
                (65, "bad.json: is not valid JSON", ["data.tokenizer_path=bad.json"]),
                (74, "none.json", ["data.tokenizer_path=none.json"])):
            done = self.llm_train(*run, *arguments)
            self.assertEqual((done.code, len(done.causes())), (code, 1), done)
            self.assertIn(part, done.err)

    def test_a_plan_counts_tokens_and_not_bytes(self):
        text = self.text(n_bytes=300_000)
        self.shards(text)
        base = ["--plan", *program.TINY, "model.vocab_size=705", "training.max_steps=0", "training.epochs=1"]
        hf = ["data.tokenizer_type=hf", f"data.tokenizer_path={GPT2}"]
        of_text = self.llm_train(*base, *hf, f"data.dataset_path={text}")
        of_shards = self.llm_train(*base, "data.dataset_path=out-*.bin")
        self.assertEqual((of_text.code, of_text.out), (0, of_shards.out), of_text)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
