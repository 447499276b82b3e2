"""Runs pipeline_bench (compute replaced by sleeps) and reads its traces with llm-trace: for every schedule the bubble on the
virtual clock, on the wall and in the trace, and the trace's beside that of the schedule with the costs it measured.
Usage: pipeline_bubble.py MPIRUN PIPELINE_BENCH LLM_TRACE [RANKS [FORWARD_MS]]"""
import json
import pathlib
import subprocess
import sys
import tempfile


def main():
    mpirun, bench, llm_trace = sys.argv[1:4]
    ranks = sys.argv[4] if len(sys.argv) > 4 else "8"
    forward_ms = sys.argv[5] if len(sys.argv) > 5 else "40"  # so that a message's time is small beside it
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([mpirun, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", ranks, bench,
                               f"trace={folder}", f"forward_ms={forward_ms}"], text=True, stdout=subprocess.PIPE, check=True)
        lines = done.stdout.splitlines()
        print(lines[0], lines[1] + "  bubble in the trace  flush of planned ms", sep="\n")
        for line in lines[2:]:
            trace = pathlib.Path(folder) / line[:16].strip()
            found = subprocess.run([llm_trace, trace, "--json"], text=True, stdout=subprocess.PIPE, check=True)
            (step,) = json.loads(found.stdout)["steps"]
            of_planned = step["flush_ms"] / step["planned_flush_ms"]
            print(f"{line} {100 * step['bubble']:18.1f}% {step['planned_flush_ms']:13.1f} x {of_planned:.3f}")


if __name__ == "__main__":
    main()
