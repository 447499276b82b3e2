"""Training steps of llm-train beside PyTorch's in one sitting: alternating runs, medians, ratios.

usage: step_ratio.py STEP_BENCH [ROUNDS] [CASE ...]      (cases: see CASES; all of the short ones by default)
The peer needs Debian's python3-torch, libopenblas0-openmp and libtcmalloc-minimal4. PEER_PYTHON names a second Python
with a newer torch, which runs compiled; PEER_PRELOAD a library for it alone (its MKL takes AVX-512 on other makers' CPUs
only where `int mkl_serv_intel_cpu_true(void)` returns 1). Without torch only llm-train's own figures are printed."""
import glob
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
# name: model, batch of a rank, T, threads, ranks, dtype
CASES = {
    "10m-fp32": ("10m", 8, 256, 1, 1, "f32"),
    "10m-bf16": ("10m", 8, 256, 1, 1, "bf16"),
    "10m-fp32-2threads": ("10m", 8, 256, 2, 1, "f32"),
    "10m-bf16-2threads": ("10m", 8, 256, 2, 1, "bf16"),
    "10m-fp32-2ranks": ("10m", 8, 256, 1, 2, "f32"),
    "10m-bf16-2ranks": ("10m", 8, 256, 1, 2, "bf16"),
    "10m-B1-T128": ("10m", 1, 128, 1, 1, "f32"),
    "10m-B1-T128-2ranks": ("10m", 1, 128, 1, 2, "f32"),
    "124m-T64-fp32": ("124m", 4, 64, 1, 1, "f32"),
    "124m-T64-bf16": ("124m", 4, 64, 1, 1, "bf16"),
    "124m-T64-fp32-2threads": ("124m", 4, 64, 2, 1, "f32"),
    "124m-T64-bf16-2threads": ("124m", 4, 64, 2, 1, "bf16"),
    "124m-T256-fp32": ("124m", 4, 256, 1, 1, "f32"),
    "124m-T256-bf16": ("124m", 4, 256, 1, 1, "bf16"),
    "124m-T256-fp32-2threads": ("124m", 4, 256, 2, 1, "f32"),
    "124m-T256-bf16-2threads": ("124m", 4, 256, 2, 1, "bf16"),
    "124m-B2-T64": ("124m", 2, 64, 1, 1, "f32"),
    "124m-B2-T64-2ranks": ("124m", 2, 64, 1, 2, "f32"),
}
SHORT = ["10m-fp32", "10m-bf16"]


def n_steps(model):
    return 4 if model == "124m" else 6


def last_json(text):
    lines = [line for line in text.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if lines else None


def own(bench, case):
    model, batch, seq, threads, ranks, dtype = case
    command = [bench, f"model={model}", f"batch={batch}", f"seq={seq}", f"threads={threads}", f"dtype={dtype}",
               f"steps={n_steps(model)}"]
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    if ranks > 1:
        command = ["mpirun", "--oversubscribe", "-n", str(ranks), *command]
    run = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return last_json(run.stdout)


def tuned_environment(threads):
    """Without these PyTorch is 1.1 to 20 times slower than it can be."""
    environment = dict(os.environ, ATEN_CPU_CAPABILITY="avx512", OMP_NUM_THREADS=str(threads), GLOO_SOCKET_IFNAME="lo")
    blas = glob.glob("/usr/lib/*/openblas-openmp")
    if blas:
        environment["LD_LIBRARY_PATH"] = blas[0]
    malloc = glob.glob("/usr/lib/*/libtcmalloc_minimal.so.4")
    if malloc:
        environment["LD_PRELOAD"] = malloc[0]
    return environment


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def peers():
    """Name, Python, and whether it compiles the model."""
    newer = os.environ.get("PEER_PYTHON")
    return [("PyTorch", "/usr/bin/python3", False)] + ([("newer, compiled", newer, True)] if newer else [])


def peer(python, compiled, case):
    model, batch, seq, threads, ranks, dtype = case
    low = dtype == "bf16"  # the tanh form of GELU has no fast bf16 kernel there
    command = [python, str(HERE / "peer_torch.py"), "--model", model, "--B", str(batch), "--T", str(seq),
               "--threads", str(threads), "--mode", "bf16" if low else "fp32", "--gelu", "none" if low else "tanh",
               "--steps", str(n_steps(model))]
    environment = tuned_environment(threads)
    if compiled:
        # Its fused attention is faster in fp32 and slower in bf16.
        command += ["--compile"] if low else ["--compile", "--sdpa"]
        preload = [os.environ.get("PEER_PRELOAD"), environment.get("LD_PRELOAD")]
        environment["LD_PRELOAD"] = ":".join(library for library in preload if library)
    if ranks > 1:
        command += ["--dist", "ddp"]
        environment.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), WORLD_SIZE=str(ranks))
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                             env=dict(environment, RANK=str(rank))) for rank in range(ranks)]
    outputs = [run.communicate()[0] for run in runs]
    return last_json(outputs[0]) if all(run.returncode == 0 for run in runs) else None


def main():
    bench = sys.argv[1]
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    for name in sys.argv[3:] or SHORT:
        ours, theirs = [], {which: [] for which, _, _ in peers()}
        for _ in range(rounds):
            ours.append(own(bench, CASES[name]))
            for which, python, compiled in peers():
                if (figure := peer(python, compiled, CASES[name])) is not None:
                    theirs[which].append(figure)
        mine = statistics.median(run["tok_s"] for run in ours)
        line = f"{name:<24} llm-train {mine:8.0f} tok/s  {ours[-1]['gflops']:6.1f} GFLOP/s  {ours[-1]['rss_MiB']} MiB"
        for which, runs in theirs.items():
            if runs:
                other = statistics.median(run["tok_s"] for run in runs)
                line += f"   {which} {other:8.0f} tok/s  {runs[-1]['rss_MiB']} MiB  ratio {mine / other:.3f}"
        if not any(theirs.values()):
            line += "   (no PyTorch here to compare with)"
        print(f"{line}   medians of {rounds} alternating runs", flush=True)


main()
