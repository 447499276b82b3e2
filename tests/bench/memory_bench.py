"""Peak memory of each rank, measured (its own resident set and the plan's bytes), of GPT-2 124M on one rank, in a pipeline of
4 stages and on 4 data-parallel ranks with each zero_stage. Usage: memory_bench.py MPIRUN STEP_BENCH"""
import json
import subprocess
import sys

MODEL = ["model=124m", "batch=4", "seq=64", "microbatches=4", "steps=1", "warm=0", "shared=0"]
CASES = [(1, []), (4, ["pp=4", "schedule=1f1b"]), (4, ["pp=4", "schedule=1f1b", "recompute=1"]),
         (4, ["batch=1"]), (4, ["batch=1", "zero=1"]), (4, ["batch=1", "zero=2"]),
         (4, ["batch=1", "zero=3", "units=7000000"]), (4, ["batch=1", "zero=3", "units=7000000", "reshard=0"])]


def main():
    mpirun, bench = sys.argv[1:3]
    print(f"{'ranks':>5}  {'':<36} {'resident MiB of each rank':<34} planned MiB of each rank")
    for ranks, options in CASES:
        launch = [mpirun, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(ranks)]
        out = subprocess.run(launch + [bench, *MODEL, *options], text=True, stdout=subprocess.PIPE, check=True).stdout
        figures = json.loads(out.splitlines()[-1])
        resident, planned = (" ".join(f"{n:>6}" for n in figures[key]) for key in ("ranks_rss_MiB", "ranks_planned_MiB"))
        print(f"{ranks:>5}  {' '.join(options):<36} {resident:<34} {planned}", flush=True)


if __name__ == "__main__":
    main()
