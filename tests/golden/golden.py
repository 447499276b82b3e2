#!/usr/bin/python3
"""An independent float64 trainer (NumPy alone, written from the formulas) that makes the golden files.

    golden.py            writes the files beside itself
    golden.py --check    holds every gradient against central differences, then every file on disk
                         against what it would write

A file NAME.safetensors holds, under Hugging Face names where tensors are parameters:
    weights:X   f32  the weights before the first step
    grads:X     f64  the first step's gradient: the mean over the step's valid tokens, not clipped
    final:X     f64  the weights after the last step
    tokens, labels   i32 (steps, microbatches, samples, seq_len)
    losses, grad_norms, learning_rates   f64 (steps): mean loss of the step's valid tokens, norm
                     before clipping, rate of the step
and in its metadata, key "case", the configuration as JSON (the dicts below).
"""
import json
import math
import pathlib
import sys

try:
    import numpy as np
except ModuleNotFoundError:
    print("skipped: this Python has no NumPy (on Debian: python3-numpy and /usr/bin/python3)")
    sys.exit(77)

import autograd as ag
from autograd import Node

HERE = pathlib.Path(__file__).resolve().parent
IGNORED = -100
U32, U64 = np.uint32, np.uint64

MODEL = dict(hidden_size=16, num_heads=4, num_kv_heads=4, intermediate_size=24, num_layers=2,
             vocab_size=23, max_seq_len=10, dropout=0.0, norm="layer_norm", norm_epsilon=1e-5,
             positions="learned", rope_theta=10000.0, activation="gelu_tanh", gated=False,
             qkv_bias=True, mlp_bias=True, lm_head_bias=False, tie_embeddings=True)
# epsilon: a key bias's true gradient is 0, so with Adam's usual 1e-8 its update would be made of
# rounding alone.
TRAINING = dict(seed=7, n_steps=5, n_microbatches=4, batch=2, seq_len=8, lr=2e-3, min_lr=2e-4,
                warmup_steps=2, beta1=0.9, beta2=0.95, epsilon=1e-6, weight_decay=0.1,
                clip_norm=0.5, start="rule")
LLAMA = dict(norm="rms_norm", positions="rotary", activation="silu", gated=True, qkv_bias=False,
             mlp_bias=False, tie_embeddings=False, num_kv_heads=2)
# start "rule": initial weights by the counter-based rule. "stretched": wider ones, so that attention is
# far from uniform and every parameter has a gradient that counts.
CASES = {
    "gpt2": dict(MODEL | TRAINING),
    "llama": dict(MODEL | LLAMA | TRAINING | dict(dropout=0.1)),
    "gpt2_stretched": dict(MODEL | TRAINING | dict(
        dropout=0.2, activation="gelu", tie_embeddings=False, lm_head_bias=True,
        positions="sinusoidal", start="stretched")),
    "llama_stretched": dict(MODEL | LLAMA | TRAINING | dict(start="stretched")),
    "mixed_stretched": dict(MODEL | TRAINING | dict(
        dropout=0.1, norm="layer_norm", positions="rotary", activation="gelu", gated=True,
        num_kv_heads=1, start="stretched", rope_theta=100.0)),
}


# Random numbers: Philox 4x32-10 (Salmon et al. 2011), its keys and what is drawn from it.

def philox(counter, key):
    """counter: four uint64 arrays of 32-bit words; key: an int of 64 bits."""
    c = [np.asarray(word, dtype=U64) for word in counter]
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    mask, shift = U64(0xFFFFFFFF), U64(32)
    for _ in range(10):
        p0, p1 = U64(0xD2511F53) * c[0], U64(0xCD9E8D57) * c[2]
        c = [(p1 >> shift) ^ c[1] ^ U64(k0), p1 & mask, (p0 >> shift) ^ c[3] ^ U64(k1), p0 & mask]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c


def words_at(key, n):
    """The first n 32-bit words of the stream `key`."""
    index = np.arange((n + 3) // 4, dtype=U64)
    zero = np.zeros_like(index)
    return np.stack(philox([index, zero, zero, zero], key), axis=1).reshape(-1)[:n]


def mix(key, value):
    value &= 0xFFFFFFFFFFFFFFFF
    block = philox([value & 0xFFFFFFFF, value >> 32, 0x6C6C6D, 1], key)
    return int(block[1]) << 32 | int(block[0])


def mix_name(key, name):
    data = name.encode()
    for begin in range(0, len(data) // 8 * 8, 8):
        key = mix(key, int.from_bytes(data[begin:begin + 8], "little"))
    return mix(mix(key, int.from_bytes(data[len(data) // 8 * 8:], "little")), len(data))


def normal(key, n):
    """Box and Muller: a block's words 0 and 1 give its elements 0 and 1, words 2 and 3 the others."""
    words = words_at(key, (n + 3) // 4 * 4).reshape(-1, 2)
    u = 1 - (words[:, 0] >> U64(8)).astype(np.float64) / 2**24
    v = (words[:, 1] >> U64(8)).astype(np.float64) / 2**24
    radius = np.sqrt(-2 * np.log(u))
    pair = [radius * np.cos(2 * np.pi * v), radius * np.sin(2 * np.pi * v)]
    return np.stack(pair, axis=1).reshape(-1)[:n]


def dropout_mask(case, step, sample, layer, site, shape):
    """What each element of one sample is multiplied by."""
    key = case["seed"]
    for value in (step, sample, layer, site):
        key = mix(key, value)
    p = np.float32(case["dropout"])
    uniform = (words_at(key, math.prod(shape)) >> U64(8)).astype(np.float64) / 2**24
    return np.where(uniform >= p, 1 / (1 - float(p)), 0.0).reshape(shape)


# The model, over parameters named and shaped as Hugging Face does.

def has_gpt2_names(case):
    return (case["norm"] == "layer_norm" and case["positions"] != "rotary" and not case["gated"]
            and case["num_kv_heads"] == case["num_heads"])


def parameter_list(case):
    """(name, shape, kind of start) in model order; start: a deviation, "zero" or "one"."""
    c, f, v = case["hidden_size"], case["intermediate_size"], case["vocab_size"]
    kv = c // case["num_heads"] * case["num_kv_heads"]
    gpt2 = has_gpt2_names(case)
    residual = 0.02 / math.sqrt(2 * case["num_layers"]) if gpt2 else 0.02
    out = []

    def norm(name):
        out.append((name + ".weight", (c,), "one"))
        if case["norm"] == "layer_norm":
            out.append((name + ".bias", (c,), "zero"))

    def linear(name, n_in, n_out, deviation, bias):
        out.append((name + ".weight", (n_in, n_out) if gpt2 else (n_out, n_in), deviation))
        if bias:
            out.append((name + ".bias", (n_out,), "zero"))

    out.append(("wte.weight" if gpt2 else "model.embed_tokens.weight", (v, c), 0.02))
    if case["positions"] == "learned":
        out.append(("wpe.weight", (case["max_seq_len"], c), 0.02))
    for i in range(case["num_layers"]):
        at = f"h.{i}." if gpt2 else f"model.layers.{i}."
        norm(at + ("ln_1" if gpt2 else "input_layernorm"))
        if gpt2:
            linear(at + "attn.c_attn", c, 3 * c, 0.02, case["qkv_bias"])
            linear(at + "attn.c_proj", c, c, residual, case["qkv_bias"])
        else:
            for name, width in (("q", c), ("k", kv), ("v", kv), ("o", c)):
                linear(at + f"self_attn.{name}_proj", c, width, 0.02, case["qkv_bias"])
        norm(at + ("ln_2" if gpt2 else "post_attention_layernorm"))
        if gpt2:
            linear(at + "mlp.c_fc", c, f, 0.02, case["mlp_bias"])
            linear(at + "mlp.c_proj", f, c, residual, case["mlp_bias"])
        else:
            if case["gated"]:
                linear(at + "mlp.gate_proj", c, f, 0.02, case["mlp_bias"])
            linear(at + "mlp.up_proj", c, f, 0.02, case["mlp_bias"])
            linear(at + "mlp.down_proj", f, c, residual, case["mlp_bias"])
    norm("ln_f" if gpt2 else "model.norm")
    if not case["tie_embeddings"]:
        out.append(("lm_head.weight", (v, c), 0.02))
    if case["lm_head_bias"]:
        out.append(("lm_head.bias", (v,), "zero"))
    return out


def start_weights(case):
    rng = np.random.default_rng(20240229)
    weights = {}
    for name, shape, start in parameter_list(case):
        n = math.prod(shape)
        if isinstance(start, float):
            key = mix_name(mix_name(case["seed"], "init"), name)
            weight = start * normal(key, n).reshape(shape)
        else:
            weight = np.full(shape, 1.0 if start == "one" else 0.0)
        if case["start"] == "stretched":
            weight = weight * 15 if isinstance(start, float) else weight + rng.normal(0, 0.2, shape)
        weights[name] = weight.astype(np.float32).astype(np.float64)
    return weights


class Model:
    """One forward over parameters given as nodes."""

    def __init__(self, case, nodes, step, first_sample, training=True):
        self.case, self.p = case, nodes
        self.step, self.first_sample = step, first_sample
        self.training = training
        self.gpt2 = has_gpt2_names(case)

    def dropout(self, x, layer, site):
        if self.case["dropout"] == 0 or not self.training:
            return x
        shape = x.value.shape[1:]
        mask = [dropout_mask(self.case, self.step, self.first_sample + b, layer, site, shape)
                for b in range(x.value.shape[0])]
        return x * np.stack(mask)

    def linear(self, name, x):
        w = self.p[name + ".weight"]
        y = x @ (w if self.gpt2 and name != "lm_head" else w.swap(0, 1))
        return y + self.p[name + ".bias"] if name + ".bias" in self.p else y

    def norm(self, name, x):
        if self.case["norm"] == "layer_norm":
            x = x - x.mean(-1)
        y = x * ag.rsqrt((x * x).mean(-1) + self.case["norm_epsilon"]) * self.p[name + ".weight"]
        return y + self.p[name + ".bias"] if name + ".bias" in self.p else y

    def rotate(self, x):
        """x (B, heads, T, D); (x[i], x[i + D/2]) turns by t * theta^(-2 i / D)."""
        t, d = x.value.shape[-2:]
        angle = np.outer(np.arange(t), self.case["rope_theta"] ** (-2 * np.arange(d // 2) / d))
        low, high = x[..., :d // 2], x[..., d // 2:]
        return ag.concatenate([low * np.cos(angle) - high * np.sin(angle),
                               high * np.cos(angle) + low * np.sin(angle)], -1)

    def attention(self, layer, at, x):
        case = self.case
        b, t, c = x.value.shape
        n_heads, n_kv, d = case["num_heads"], case["num_kv_heads"], c // case["num_heads"]
        if self.gpt2:
            qkv = self.linear(at + "attn.c_attn", x)
            q, k, v = (qkv[..., i * c:(i + 1) * c] for i in range(3))
        else:
            q, k, v = (self.linear(at + f"self_attn.{name}_proj", x) for name in "qkv")
        q = q.reshape(b, t, n_heads, d).swap(1, 2)
        k, v = (y.reshape(b, t, n_kv, d).swap(1, 2) for y in (k, v))
        if case["positions"] == "rotary":
            q, k = self.rotate(q), self.rotate(k)
        group = np.arange(n_heads) // (n_heads // n_kv)
        scores = q @ k[:, group].swap(2, 3) / math.sqrt(d)
        future = np.triu(np.ones((t, t), dtype=bool), 1)
        scores = scores + np.where(future, -np.inf, 0.0)
        weights = ag.exp(scores - scores.value.max(-1, keepdims=True))
        weights = weights / weights.sum(-1, keepdims=True)
        out = self.dropout(weights, layer, 1) @ v[:, group]
        out = out.swap(1, 2).reshape(b, t, c)
        return self.linear(at + ("attn.c_proj" if self.gpt2 else "self_attn.o_proj"), out)

    def mlp(self, at, x):
        f = getattr(ag, self.case["activation"])
        if self.gpt2:
            return self.linear(at + "mlp.c_proj", f(self.linear(at + "mlp.c_fc", x)))
        up = self.linear(at + "mlp.up_proj", x)
        hidden = f(self.linear(at + "mlp.gate_proj", x)) * up if self.case["gated"] else f(up)
        return self.linear(at + "mlp.down_proj", hidden)

    def logits(self, tokens):
        case = self.case
        t, c = tokens.shape[1], case["hidden_size"]
        table = self.p["wte.weight" if self.gpt2 else "model.embed_tokens.weight"]
        x = table[tokens]
        if case["positions"] == "learned":
            x = x + self.p["wpe.weight"][:t]
        elif case["positions"] == "sinusoidal":
            x = x + 0.02 * math.sqrt(2) * sinusoids(t, c)
        x = self.dropout(x, -1, 0)
        for layer in range(case["num_layers"]):
            at = f"h.{layer}." if self.gpt2 else f"model.layers.{layer}."
            normed = self.norm(at + ("ln_1" if self.gpt2 else "input_layernorm"), x)
            x = x + self.dropout(self.attention(layer, at, normed), layer, 2)
            normed = self.norm(at + ("ln_2" if self.gpt2 else "post_attention_layernorm"), x)
            x = x + self.dropout(self.mlp(at, normed), layer, 3)
        x = self.norm("ln_f" if self.gpt2 else "model.norm", x)
        if not case["tie_embeddings"]:
            return self.linear("lm_head", x)
        y = x @ table.swap(0, 1)
        return y + self.p["lm_head.bias"] if case["lm_head_bias"] else y

    def loss_sum(self, tokens, labels):
        """Sum over valid tokens of -log softmax(logits)[label]."""
        logits = self.logits(tokens)
        top = logits.value.max(-1, keepdims=True)
        log_sum = ag.log(ag.exp(logits - top).sum(-1)) + top[..., 0]
        b, t = np.nonzero(labels != IGNORED)
        return (log_sum[b, t] - logits[b, t, labels[b, t]]).sum()


def sinusoids(t, c):
    angle = np.arange(t)[:, None] / 10000.0 ** (np.arange(c) // 2 * 2 / c)
    return np.where(np.arange(c) % 2 == 0, np.sin(angle), np.cos(angle))


# Training.

def batches(case):
    """Next-token prediction on a noisy counting text; some labels are ignored, one sample wholly."""
    rng = np.random.default_rng(case["seed"])
    shape = (case["n_steps"], case["n_microbatches"], case["batch"], case["seq_len"])
    text = rng.integers(0, case["vocab_size"], shape[:-1] + (1,)) + np.arange(shape[-1] + 1)
    noise = rng.integers(0, case["vocab_size"], text.shape)
    text = np.where(rng.random(text.shape) < 0.2, noise, text) % case["vocab_size"]
    labels = np.where(rng.random(shape) < 0.25, IGNORED, text[..., 1:])
    labels[0, 1, 0] = IGNORED
    return text[..., :-1].astype(np.int32), labels.astype(np.int32)


def learning_rate(case, step):
    """Linear over warmup_steps to lr, which the last of them reaches; then half a cosine from lr to
    min_lr, which the last step has."""
    if step < case["warmup_steps"]:
        return case["lr"] * (step + 1) / case["warmup_steps"]
    progress = (step - case["warmup_steps"]) / (case["n_steps"] - 1 - case["warmup_steps"])
    return case["min_lr"] + 0.5 * (1 + math.cos(math.pi * progress)) * (case["lr"] - case["min_lr"])


def gradients(case, weights, tokens, labels, step):
    """Mean loss over the step's valid tokens, and its gradient."""
    n_valid = int((labels != IGNORED).sum())
    loss, grads = 0.0, {name: np.zeros_like(w) for name, w in weights.items()}
    for m in range(case["n_microbatches"]):
        nodes = {name: Node(w) for name, w in weights.items()}
        total = Model(case, nodes, step, m * case["batch"]).loss_sum(tokens[m], labels[m])
        ag.backward(total)
        loss += float(total.value)
        for name in grads:
            if nodes[name].grad is not None:
                grads[name] += nodes[name].grad / n_valid
    return loss / n_valid, grads


def decays(name, weight):
    """Weight decay applies to matrices, neither to embeddings nor to norms and biases."""
    is_embedding = name in ("wte.weight", "wpe.weight", "model.embed_tokens.weight")
    return weight.ndim == 2 and not is_embedding


def train(case):
    weights = start_weights(case)
    tokens, labels = batches(case)
    out = {"weights:" + name: w.astype(np.float32) for name, w in weights.items()}
    first = {name: np.zeros_like(w) for name, w in weights.items()}
    second = {name: np.zeros_like(w) for name, w in weights.items()}
    losses, norms, rates = [], [], []
    for step in range(case["n_steps"]):
        loss, grads = gradients(case, weights, tokens[step], labels[step], step)
        norm = math.sqrt(sum(float((g * g).sum()) for g in grads.values()))
        if step == 0:
            out |= {"grads:" + name: g for name, g in grads.items()}
        clip = min(1.0, case["clip_norm"] / norm)
        rate, t = learning_rate(case, step), step + 1
        for name, g in grads.items():
            g = clip * g
            first[name] = case["beta1"] * first[name] + (1 - case["beta1"]) * g
            second[name] = case["beta2"] * second[name] + (1 - case["beta2"]) * g * g
            m = first[name] / (1 - case["beta1"]**t)
            v = second[name] / (1 - case["beta2"]**t)
            decay = case["weight_decay"] if decays(name, g) else 0.0
            weights[name] = (weights[name] * (1 - rate * decay)
                             - rate * m / (np.sqrt(v) + case["epsilon"]))
        losses.append(loss)
        norms.append(norm)
        rates.append(rate)
    out |= {"final:" + name: w for name, w in weights.items()}
    for name, values in (("losses", losses), ("grad_norms", norms), ("learning_rates", rates)):
        out[name] = np.array(values)
    return out | {"tokens": tokens, "labels": labels}


# Files and checks.

def safetensors_bytes(tensors, metadata):
    """The format, by hand: header length, JSON header, bytes."""
    names = {"float64": "F64", "float32": "F32", "int32": "I32"}
    order = sorted(tensors, key=lambda n: (-tensors[n].itemsize, n))
    header, begin = {"__metadata__": metadata}, 0
    for name in order:
        end = begin + tensors[name].nbytes
        header[name] = dict(dtype=names[tensors[name].dtype.name], shape=list(tensors[name].shape),
                            data_offsets=[begin, end])
        begin = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return (len(text).to_bytes(8, "little") + text
            + b"".join(np.ascontiguousarray(tensors[n]).tobytes() for n in order))


def read_safetensors(path):
    """{name: array} of a file, by hand."""
    data = pathlib.Path(path).read_bytes()
    n = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + n])
    dtypes = {"F64": "<f8", "F32": "<f4", "I32": "<i4"}
    out = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            flat = np.frombuffer(data[8 + n + begin:8 + n + end], dtypes[entry["dtype"]])
            out[name] = flat.reshape(entry["shape"])
    return out


def file_name(name):
    return HERE / f"{name}.safetensors"


def contents(case):
    return safetensors_bytes(train(case), {"format": "pt", "case": json.dumps(case)})


def check_gradients(name, case):
    """Every tensor's gradient along a random direction against central differences."""
    weights = start_weights(case)
    tokens, labels = batches(case)
    _, grads = gradients(case, weights, tokens[0], labels[0], 0)
    rng = np.random.default_rng(1)
    worst = 0.0
    for parameter, w in weights.items():
        direction = rng.normal(size=w.shape)
        step = 2e-6
        value = [gradients(case, weights | {parameter: w + sign * step * direction}, tokens[0],
                           labels[0], 0)[0] for sign in (1, -1)]
        slope = (value[0] - value[1]) / (2 * step)
        worst = max(worst, abs(slope - float((grads[parameter] * direction).sum())))
    print(f"{name}: gradients differ from central differences by at most {worst:.1e}")
    assert worst < 1e-8, name


def check_file(name, case):
    """The stored numbers are those that this script makes (another NumPy may round otherwise)."""
    stored, made = read_safetensors(file_name(name)), train(case)
    assert stored.keys() == made.keys(), name
    worst = max(float(np.abs(stored[key] - made[key]).max()) for key in made)
    print(f"{name}: the file differs from a new run by at most {worst:.1e}")
    assert worst < 1e-12, name


def main():
    for name, case in CASES.items():
        if "--check" in sys.argv:
            check_gradients(name, case)
            check_file(name, case)
        else:
            data = contents(case)
            file_name(name).write_bytes(data)
            print(f"{name}: {len(data)} bytes")


if __name__ == "__main__":
    main()
