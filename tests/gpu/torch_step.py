"""A PyTorch step of the models of `gpu_check train`, compiled, with flash attention, in bf16: tokens per second, beside them.
Exits with 77 and one line where PyTorch or its CUDA is not there. --small: tiny models, on a CPU too, not compiled."""
import statistics
import sys
import time

try:
    import torch
    from torch import nn
    from torch.nn import functional as F
except ImportError as error:
    print(f"torch_step.py: no PyTorch for {sys.executable} ({error})")
    sys.exit(77)
SMALL = sys.argv[1:] == ["--small"]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if not hasattr(nn, "RMSNorm"):
    print(f"torch_step.py: PyTorch {torch.__version__} is older than 2.4")
    sys.exit(77)
if DEVICE == "cpu" and not SMALL:
    print(f"torch_step.py: PyTorch {torch.__version__} finds no CUDA device")
    sys.exit(77)


class Block(nn.Module):
    def __init__(self, width, heads, kv_heads, mlp, is_llama):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim, self.is_llama = heads, kv_heads, width // heads, is_llama
        norm = nn.RMSNorm if is_llama else nn.LayerNorm
        self.norm1, self.norm2 = norm(width), norm(width)
        self.qkv = nn.Linear(width, (heads + 2 * kv_heads) * self.head_dim, bias=not is_llama)
        self.out = nn.Linear(width, width, bias=not is_llama)
        self.up = nn.Linear(width, 2 * mlp if is_llama else mlp, bias=not is_llama)
        self.down = nn.Linear(mlp, width, bias=not is_llama)

    def forward(self, x, turn):
        batch, length, width = x.shape
        sizes = [n * self.head_dim for n in (self.heads, self.kv_heads, self.kv_heads)]
        q, k, v = (part.view(batch, length, -1, self.head_dim).transpose(1, 2)
                   for part in self.qkv(self.norm1(x)).split(sizes, 2))
        if self.is_llama:
            q, k = (a * turn[0] + torch.cat([-a[..., self.head_dim // 2:], a[..., :self.head_dim // 2]], -1) * turn[1]
                    for a in (q, k))
            shared = self.heads // self.kv_heads
            k, v = k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        h = self.up(self.norm2(x))
        if self.is_llama:
            gate, h = h.chunk(2, -1)
            return x + self.down(F.silu(gate) * h)
        return x + self.down(F.gelu(h, approximate="tanh"))


class Decoder(nn.Module):
    def __init__(self, width, layers, heads, kv_heads, mlp, vocabulary, length, is_llama):
        super().__init__()
        self.table = nn.Embedding(vocabulary, width)
        self.positions = None if is_llama else nn.Embedding(length, width)
        self.blocks = nn.ModuleList([Block(width, heads, kv_heads, mlp, is_llama) for _ in range(layers)])
        self.norm = (nn.RMSNorm if is_llama else nn.LayerNorm)(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, 0, 0.02)
        if not is_llama:
            self.head.weight = self.table.weight
        half = width // heads // 2
        angles = torch.outer(torch.arange(length), 10000.0 ** (-torch.arange(half) / half)).repeat(1, 2)
        self.register_buffer("cos", angles.cos().bfloat16())
        self.register_buffer("sin", angles.sin().bfloat16())

    def forward(self, tokens, labels):
        x = self.table(tokens)
        if self.positions is not None:
            x = x + self.positions.weight
        for block in self.blocks:
            x = block(x, (self.cos, self.sin))
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), labels.view(-1))


def finish():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def measure(name, batch, length, steps, **extents):
    torch.manual_seed(1)
    model = Decoder(length=length, **extents).to(DEVICE)
    run = model if SMALL else torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    tokens = torch.randint(extents["vocabulary"], (batch, length + 1), device=DEVICE)
    seconds = []
    for _ in range(steps):
        finish()
        begin = time.perf_counter()
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            loss = run(tokens[:, :-1], tokens[:, 1:].contiguous())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        finish()
        seconds.append(time.perf_counter() - begin)
    step = statistics.median(seconds[3:])
    print(f"{name + ' PyTorch ' + torch.__version__ + ' step':<52} {1e3 * step:10.5g} ms")
    print(f"{name + ' PyTorch tokens':<52} {batch * length / step:10.5g} tokens/s", flush=True)


if SMALL:
    measure("tiny GPT-2", 1, 8, 4, width=16, layers=2, heads=4, kv_heads=4, mlp=32, vocabulary=31, is_llama=False)
    measure("tiny Llama", 1, 8, 4, width=16, layers=2, heads=4, kv_heads=2, mlp=32, vocabulary=31, is_llama=True)
else:
    measure("GPT-2 124M", 16, 1024, 20, width=768, layers=12, heads=12, kv_heads=12, mlp=3072, vocabulary=50304, is_llama=False)
    measure("Llama 1.1B", 4, 2048, 12, width=2048, layers=22, heads=32, kv_heads=4, mlp=5632, vocabulary=32000, is_llama=True)
