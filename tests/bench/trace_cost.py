"""What a trace costs: steps with and without, in turn, so that what else the machine does falls on both.
usage: trace_cost.py MPIRUN STEP_BENCH [PAIRS]"""
import json
import statistics
import subprocess
import sys
import tempfile


def step_ms(mpirun, bench, *options):
    done = subprocess.run([mpirun, "--allow-run-as-root", "--oversubscribe", "-n", "2", bench, "steps=6", *options], check=True,
                          stdout=subprocess.PIPE, text=True)
    return json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][-1])["ms"]


def main():
    mpirun, bench = sys.argv[1:3]
    n_pairs = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    pairs = []
    with tempfile.TemporaryDirectory() as folder:
        for n in range(n_pairs):
            options = [[], [f"trace={folder}"]]
            times = [step_ms(mpirun, bench, *options[(n + k) % 2]) for k in range(2)]
            pairs.append(times if n % 2 == 0 else times[::-1])
            print(f"without {pairs[-1][0]:.1f} ms, with a trace {pairs[-1][1]:.1f} ms", flush=True)
    without, traced = (statistics.median(column) for column in zip(*pairs))
    print(f"medians of {n_pairs}: without {without:.1f} ms, with a trace {traced:.1f} ms: {100 * (traced / without - 1):+.2f} %")


main()
