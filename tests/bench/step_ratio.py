"""A training step of llm-train beside PyTorch's in one sitting: alternating runs, medians, one ratio.

usage: step_ratio.py STEP_BENCH [ROUNDS]
The peer needs Debian's python3-torch, libopenblas0-openmp and libtcmalloc-minimal4 (PEER_PYTHON names another
Python with a newer torch). Without torch only llm-train's own figure is printed."""
import glob
import json
import os
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
CASE = {"model": "10m", "batch": "8", "seq": "256"}


def own(bench):
    arguments = [f"{name}={value}" for name, value in CASE.items()] + ["steps=6"]
    return json.loads(subprocess.run([bench, *arguments], check=True, capture_output=True, text=True).stdout)


def tuned_environment():
    """Without these PyTorch is 1.1 to 20 times slower than it can be."""
    environment = dict(os.environ, ATEN_CPU_CAPABILITY="avx512", OMP_NUM_THREADS="1")
    blas = glob.glob("/usr/lib/*/openblas-openmp")
    if blas:
        environment["LD_LIBRARY_PATH"] = blas[0]
    malloc = glob.glob("/usr/lib/*/libtcmalloc_minimal.so.4")
    if malloc:
        environment["LD_PRELOAD"] = malloc[0]
    return environment


def peer(python):
    command = [python, str(HERE / "peer_torch.py"), "--model", CASE["model"], "--B", CASE["batch"], "--T", CASE["seq"],
               "--threads", "1", "--mode", "fp32", "--steps", "6"]
    run = subprocess.run(command, capture_output=True, text=True, env=tuned_environment())
    lines = [line for line in run.stdout.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if run.returncode == 0 and lines else None


def main():
    bench, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3
    python = os.environ.get("PEER_PYTHON", "/usr/bin/python3")
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(own(bench))
        if (figure := peer(python)) is not None:
            theirs.append(figure)
    print("llm-train", json.dumps(ours[-1]))
    mine = statistics.median(run["tok_s"] for run in ours)
    if not theirs:
        print(f"llm-train {mine:.0f} tok/s; no PyTorch here to compare with")
        return
    print("pytorch  ", json.dumps(theirs[-1]))
    other = statistics.median(run["tok_s"] for run in theirs)
    print(f"10M model, B 8, T 256, fp32, 1 thread: llm-train {mine:.0f} tok/s, PyTorch {other:.0f} tok/s, "
          f"ratio {mine / other:.3f} (medians of {rounds} alternating runs)")


main()
