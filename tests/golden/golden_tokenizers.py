"""Makes the golden files of the tokenizers: two small vocabularies of byte-level BPE, trained here, and what the
library `tokenizers` (Hugging Face's, in Rust) makes of texts that are known to go wrong.

    golden_tokenizers.py          writes tokenizer_{gpt2,llama3}.json and tokenizer_{gpt2,llama3}_vectors.json
    golden_tokenizers.py --check  the stored vectors are those of the library (exit 77 where it is missing)

Texts that are no UTF-8 the library cannot take. For these a second BPE, written here in plain Python and held against
the library on all other texts, is the oracle: well-formed parts are split, a run of other bytes is one piece."""
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
try:
    import regex
    import tokenizers
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
except ModuleNotFoundError:
    print("skipped: this Python has not both packages, tokenizers and regex (pip install tokenizers regex)")
    sys.exit(77)

GPT2 = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
LLAMA3 = (r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"""
          r"""| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""")
N_TOKENS = 700

TEXTS = [
    "Hello world", "a  b", "   return x", "x = 1;  \n", "a\n\nb", "\n\n  \n\tfoo\n", "trailing   ", "   ", " ", "\t", "\n", "",
    "tabs\tand \t mixed\n \n\r\n\r\n  end", "def f(x):\n    if x:\n        return  x\n\n\n\nclass A:\n\tpass\n",
    "I'm you're we've he'll she'd it's don't", "I'M YOU'RE WE'VE HE'LL SHE'D IT'S DON'T", "'s 's's 'S 'sS ''s '' ' '\u017f'LL 'Ll'lL",
    "can't've o'clock rock'n'roll 'tis 'twas 'r 're 'l 'll'", "don\u2019t \u2018quote\u2019",
    "1 12 123 1234 12345 1234567890 3.14159 1,000,000 0x1F", "٣٤٥ ④⑤ ½ Ⅷ 五六 1a2b3c", "a1b22c333d4444",
    "你好，世界。这是中文 文本。", "日本語のテキスト、カタカナ ひらがな", "한국어 텍스트", "ภาษาไทยไม่มีช่องว่าง", "हिन्दी में पाठ",
    "🙂🙂 👩‍👩‍👧‍👦 🇩🇪 👍🏽 x🙂y", "cafe\u0301 e\u0301e\u0301 n\u0303 \u0301 a\u0301\u0302b", "Ünïcödé straße ΑΒΓ абв שלום مرحبا",
    "a\u00a0b \u00a0c \u00a0\u00a0 d\u00a0", "a\u2003b \u3000c\u2028d\u0085e\u200bf\ufefflast", "\u180e a\u180eb", "\u001c\u001d x\u000b\u000cy",
    "user <|endoftext|> text", "<|endoftext|>", "<|endoftext|><|endoftext|>", " <|endoftext|> ", "<|endoftext|", "a<|pad|>b <|pad|> ",
    "<|mask|>", "a <|mask|> b", "a \n <|mask|>\u00a0 <|mask|>b", "<tool> <tool>x</tool> <tools> <tool", "call<tool>  <tool>\n",
    "!!! ?!?! ... --- *** (a) [b] {c}: \"quoted\" #tag @me $5 50% a/b\\c a_b ~`^|<>&", "...\n\n   !!\r\n\r\n", "#!/bin/sh\n# a\n",
    "https://example.org/a?b=c&d=e#f", "word" * 40, "ab" * 100 + " " + "the " * 60, "=" * 300, " " * 200 + "x", "\n" * 150 + "y",
    "\u0000\u0001\u007f", "\U0010ffff\U000e0001\ue000", "ǅ ʰ ª º ⁿ ₂ ⅔ 〇 〡 ㊀ 𝟘𝟙 𐏓 𒐀", "mixed 日本語text123と🙂end.", "quixotry quixotry",
]
BYTES = [b"\xff", b"\x80\x80\x80", b"ok\xffok", b"\xff\xfe\xc3\x28\xed\xa0\x80 \xf0\x9f\x98", b"caf\xe9 na\xefve", b"a \xc0\xaf b",
         b"\xe2\x82", b"x\xe2\x82y", b" \xf4\x90\x80\x80 ", b"a  \xff  b", b"it\xff's", b"12\xff34567\n\xff\n\n", b"\xe4\xbd\xa0\xe5\xa5",
         bytes(range(256)), bytes(range(255, -1, -1)) * 2, b"<|endo\xfftext|> <|endoftext|>\xff<|endoftext|>"]
CORPUS = TEXTS[:-1] + [
    "The quick brown fox jumps over the lazy dog. The dog sleeps in the sun, and the fox runs through the forest.",
    "A training step computes the gradient of the loss for each token and updates the weights of the model.",
    "for (int i = 0; i < n; ++i) {\n    sum += values[i];\n}\nreturn sum;\n", "    if (x == nullptr) {\n        throw Error(\"none\");\n    }\n",
    "Die Straße führt durch den Wald; über den Fluss geht eine Brücke.", "La lumière du matin éclaire les maisons de l'été.",
    "这是一个测试。我们训练一个模型。", "Это простой пример текста на русском языке.",
] * 3


def alphabet():
    """Byte -> character of a byte-level vocabulary."""
    stays = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = [b for b in range(256) if b not in stays]
    return {b: chr(b) for b in stays} | {b: chr(256 + i) for i, b in enumerate(moved)}


ALPHABET = alphabet()


def made(name):
    tokenizer = Tokenizer(models.BPE(ignore_merges=name == "llama3"))
    if name == "gpt2":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(LLAMA3), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=N_TOKENS, initial_alphabet=sorted(ALPHABET.values()), show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens([
        AddedToken("<|endoftext|>", normalized=name == "gpt2"), AddedToken("<|pad|>", normalized=False),
        AddedToken("<|mask|>", lstrip=True, rstrip=name == "gpt2", normalized=False)])
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False), AddedToken("<tool> <tool>", normalized=True)])
    return json.loads(tokenizer.to_str())


def written(name):
    """The file: merges as "a b" for gpt2, as old files have them, and as pairs for llama3; one entry a line."""
    data = made(name)
    if name == "gpt2":
        data["model"]["merges"] = [" ".join(pair) for pair in data["model"]["merges"]]
    else:  # a piece that is a token, though no merges lead there
        data["model"]["vocab"]["quixotry"] = len(data["model"]["vocab"])
        for token in data["added_tokens"]:  # they follow upon the vocabulary
            token["id"] += 1
    return json.dumps(data, ensure_ascii=False, indent=0) + "\n"


class PlainBpe:
    """Byte pair encoding by its definition. Texts of `added` are not looked for."""

    def __init__(self, data, pattern):
        model = data["model"]
        self.vocab, self.pattern, self.whole = model["vocab"], regex.compile(pattern), model["ignore_merges"]
        pairs = [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in model["merges"]]
        self.ranks = {pair: rank for rank, pair in enumerate(pairs)}

    def piece(self, data):
        parts = [ALPHABET[byte] for byte in data]
        if self.whole and "".join(parts) in self.vocab:
            return [self.vocab["".join(parts)]]
        while True:
            ranked = [(self.ranks.get(pair, 1 << 40), i) for i, pair in enumerate(zip(parts, parts[1:]))]
            rank, i = min(ranked, default=(1 << 40, 0))
            if rank == 1 << 40:
                return [self.vocab[part] for part in parts]
            parts[i:i + 2] = [parts[i] + parts[i + 1]]

    def encode(self, data):
        ids = []
        while data:
            valid, n_invalid = split_valid(data)
            for match in self.pattern.finditer(valid):
                ids += self.piece(match.group().encode())
            data = data[len(valid.encode()):]
            if n_invalid:
                ids += self.piece(data[:n_invalid])
            data = data[n_invalid:]
        return ids


def split_valid(data):
    """The longest well-formed beginning and the number of bytes after it that begin no character."""
    try:
        return data.decode(), 0
    except UnicodeDecodeError as error:
        begin = at = error.start
    while at < len(data) and not any(begins(data[at:at + n]) for n in range(1, 5)):
        at += 1
    return data[:begin].decode(), at - begin


def begins(data):
    try:
        return len(data.decode()) == 1
    except UnicodeDecodeError:
        return False


def vectors(name):
    text = (HERE / f"tokenizer_{name}.json").read_text()
    library = Tokenizer.from_str(text)
    plain = PlainBpe(json.loads(text), GPT2 if name == "gpt2" else LLAMA3)
    out = []
    for text in TEXTS:
        library.encode_special_tokens = False
        special = library.encode(text, add_special_tokens=False).ids
        library.encode_special_tokens = True
        ids = library.encode(text, add_special_tokens=False).ids
        if "<tool>" not in text:
            assert ids == plain.encode(text.encode()), (name, text)
        out.append({"hex": text.encode().hex(), "ids": ids, "special": special})
    for data in BYTES:
        out.append({"hex": data.hex(), "ids": plain.encode(data), "special": None})
    return "[\n" + ",\n".join(json.dumps(vector) for vector in out) + "\n]\n"


def main():
    for name in ("gpt2", "llama3"):
        stored = HERE / f"tokenizer_{name}_vectors.json"
        if "--check" in sys.argv:
            assert stored.read_text() == vectors(name), f"{stored.name} is not what tokenizers {tokenizers.__version__} gives"
        else:
            (HERE / f"tokenizer_{name}.json").write_text(written(name))
            stored.write_text(vectors(name))
        print(f"{name}: {len(TEXTS)} texts, {len(BYTES)} that are no UTF-8")


if __name__ == "__main__":
    main()
