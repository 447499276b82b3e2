#!/usr/bin/python3
"""Small Hugging Face folders and the logits of their models, by the independent float64 model of golden.py.

    hf_golden.py            writes the folders beside itself
    hf_golden.py --check    holds every file on disk against what it would write

A folder NAME holds config.json and weights as Hugging Face's GPT2LMHeadModel or LlamaForCausalLM have them, and
expected.safetensors: tokens i32 (samples, seq_len), logits f64 (samples, seq_len, vocabulary).
    hf_gpt2            one file of float32, tied
    hf_llama           one file of float32, grouped heads, the base of the rotation under its current key alone
    hf_mixtral         one file of float32, a Llama with three experts, of which a token visits two
    hf_llama_sharded   two files with an index, bfloat16 and float16, the base under its old key alone
"""
import json
import sys

import golden
from golden import np
from autograd import Node

GPT2 = golden.MODEL | dict(seed=11, start="stretched")
LLAMA = GPT2 | golden.LLAMA | dict(rope_theta=500.0, norm_epsilon=1e-6)
GPT2_CONFIG = {
    "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 23, "n_positions": 10, "n_embd": 16,
    "n_layer": 2, "n_head": 4, "n_inner": 24, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
    "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "initializer_range": 0.02, "n_ctx": 10,
    "bos_token_id": 22, "eos_token_id": 22, "torch_dtype": "float32", "transformers_version": "4.40.0"}
LLAMA_CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 23, "max_position_embeddings": 10,
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "hidden_act": "silu", "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
    "bos_token_id": 1, "eos_token_id": [2, 3], "initializer_range": 0.02}
MIXTRAL = LLAMA | dict(num_experts=3, top_k=2)
MIXTRAL_CONFIG = LLAMA_CONFIG | {
    "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 3, "num_experts_per_tok": 2,
    "output_router_logits": False, "router_aux_loss_coef": 0.02, "sliding_window": None, "rope_theta": 500.0}
NEW_ROTATION = {"dtype": "float32", "head_dim": 4, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}
OLD_ROTATION = {"torch_dtype": "bfloat16", "rope_theta": 500.0, "rope_scaling": None}


class Mixture(golden.Model):
    """A token's experts are those of the largest softmax probabilities, which are made to add up to 1."""

    def mlp(self, at, x):
        weights = {name[len(at):]: node.value for name, node in self.p.items() if name.startswith(at)}
        tokens, out = x.value.reshape(-1, x.value.shape[-1]), []
        for token in tokens:
            logits = weights["block_sparse_moe.gate.weight"] @ token
            probabilities = np.exp(logits - logits.max())
            chosen = np.argsort(-probabilities, kind="stable")[:self.case["top_k"]]
            total = 0
            for e in chosen:
                w1, w2, w3 = (weights[f"block_sparse_moe.experts.{e}.w{i}.weight"] for i in (1, 2, 3))
                gate = w1 @ token
                total = total + probabilities[e] * (w2 @ (gate / (1 + np.exp(-gate)) * (w3 @ token)))
            out.append(total / probabilities[chosen].sum())
        return Node(np.stack(out).reshape(x.value.shape))


def mixtral_weights(case):
    """A Llama's weights with experts in place of each mlp."""
    rng = np.random.default_rng(17)
    weights = {name: w for name, w in golden.start_weights(case).items() if ".mlp." not in name}
    c, f = case["hidden_size"], case["intermediate_size"]
    for layer in range(case["num_layers"]):
        at = f"model.layers.{layer}.block_sparse_moe."
        shapes = {"gate": (case["num_experts"], c)}
        for e in range(case["num_experts"]):
            shapes |= {f"experts.{e}.w1": (f, c), f"experts.{e}.w2": (c, f), f"experts.{e}.w3": (f, c)}
        weights |= {f"{at}{name}.weight": rng.normal(0, 0.3, shape) for name, shape in shapes.items()}
    return weights


def to_bf16(x):
    """The bits of the nearest bfloat16, ties to even."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + np.uint64(0x7FFF) + (bits >> np.uint64(16) & np.uint64(1))) >> np.uint64(16)).astype(np.uint16)


def from_bf16(bits):
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def file_bytes(tensors):
    """tensors: {name: (dtype's name, array)}; in the order that the format's own writer has."""
    order = sorted(tensors, key=lambda n: (-tensors[n][1].itemsize, n))
    header, begin = {"__metadata__": {"format": "pt"}}, 0
    for name in order:
        dtype, array = tensors[name]
        header[name] = dict(dtype=dtype, shape=list(array.shape), data_offsets=[begin, begin + array.nbytes])
        begin += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(tensors[n][1].tobytes() for n in order)


def expected(case, weights, model=golden.Model):
    tokens = np.random.default_rng(5).integers(0, case["vocab_size"], (2, case["max_seq_len"])).astype(np.int32)
    nodes = {name: Node(w.astype(np.float64)) for name, w in weights.items()}
    logits = model(case, nodes, 0, 0, training=False).logits(tokens).value
    return file_bytes({"tokens": ("I32", tokens), "logits": ("F64", np.ascontiguousarray(logits))})


def json_bytes(value):
    return (json.dumps(value, indent=2) + "\n").encode()


def single(case, config, exact=None, model=golden.Model):
    exact = golden.start_weights(case) if exact is None else exact
    weights = {name: w.astype(np.float32) for name, w in exact.items()}
    return {"config.json": json_bytes(config), "expected.safetensors": expected(case, weights, model),
            "model.safetensors": file_bytes({name: ("F32", w) for name, w in weights.items()})}


def sharded(case, config):
    """Block 1 and the head are float16 in the second file, the rest bfloat16 in the first."""
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    files, weights, weight_map = [{}, {}], {}, {}
    for name, w in golden.start_weights(case).items():
        second = ".layers.1." in name or name == "lm_head.weight"
        stored = w.astype(np.float16) if second else to_bf16(w)
        weights[name] = stored.astype(np.float32) if second else from_bf16(stored)
        files[second][name] = ("F16" if second else "BF16", np.ascontiguousarray(stored))
        weight_map[name] = names[second]
    index = {"metadata": {"total_size": sum(2 * w.size for w in weights.values())}, "weight_map": weight_map}
    return {"config.json": json_bytes(config), "expected.safetensors": expected(case, weights),
            "model.safetensors.index.json": json_bytes(index),
            names[0]: file_bytes(files[0]), names[1]: file_bytes(files[1])}


def folders():
    return {"hf_gpt2": single(GPT2, GPT2_CONFIG), "hf_llama": single(LLAMA, LLAMA_CONFIG | NEW_ROTATION),
            "hf_mixtral": single(MIXTRAL, MIXTRAL_CONFIG, mixtral_weights(MIXTRAL), Mixture),
            "hf_llama_sharded": sharded(LLAMA, LLAMA_CONFIG | OLD_ROTATION)}


def differs(path, data):
    """Logits may differ in the last digits where NumPy's kernels do; everything else is exact."""
    stored = path.read_bytes()
    if path.name != "expected.safetensors" or len(stored) != len(data):
        return stored != data
    begin = 8 + int.from_bytes(data[:8], "little")
    end = begin + 8 * int(np.prod(json.loads(data[8:begin])["logits"]["shape"]))
    old, new = (np.frombuffer(b[begin:end], "<f8") for b in (stored, data))
    return stored[:begin] + stored[end:] != data[:begin] + data[end:] or np.abs(old - new).max() > 1e-11


def main():
    for name, files in folders().items():
        folder = golden.HERE / name
        folder.mkdir(exist_ok=True)
        for file, data in files.items():
            path = folder / file
            if "--check" not in sys.argv:
                path.write_bytes(data)
                print(f"{path}: {len(data)} bytes")
            elif differs(path, data):
                sys.exit(f"{path} is not what this script makes")


main()
