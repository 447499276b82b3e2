"""Runs pipeline_bench (compute replaced by sleeps) and reads its traces: for every schedule the bubble on the virtual clock,
on the wall and as the trace shows it, the part of a flush in which a rank has no slice of compute.
Usage: pipeline_bubble.py MPIRUN PIPELINE_BENCH [RANKS]"""
import json
import pathlib
import subprocess
import sys
import tempfile


def bubble_in(traces):
    """Mean over ranks of the idle part, from the first begin to the last end of all."""
    slices = []
    for path in traces:
        events = json.loads(path.read_text())
        events = events["traceEvents"] if isinstance(events, dict) else events
        slices.append([(e["ts"], e["ts"] + e["dur"]) for e in events if e.get("cat") == "compute"])
    begin = min(b for rank in slices for b, _ in rank)
    end = max(e for rank in slices for _, e in rank)
    busy = sum(e - b for rank in slices for b, e in rank)
    return 1 - busy / (end - begin) / len(slices)


def main():
    mpirun, bench = sys.argv[1:3]
    ranks = sys.argv[3] if len(sys.argv) > 3 else "8"
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([mpirun, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", ranks, bench,
                               f"trace={folder}"], text=True, stdout=subprocess.PIPE, check=True)
        lines = done.stdout.splitlines()
        print(lines[0], lines[1] + "  bubble in the trace", sep="\n")
        for line in lines[2:]:
            name = line[:16].strip()
            traces = sorted(pathlib.Path(folder).glob(f"{name}-rank-*.json"))
            print(f"{line} {100 * bubble_in(traces):18.1f}%")


if __name__ == "__main__":
    main()
