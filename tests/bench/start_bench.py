"""From the start of the process to the end of the first step, as llm-train itself says it: the quickstart on 2 ranks,
first with an empty token cache, then as every later start.

usage: start_bench.py LLM_TRAIN ROOT"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

PROGRAM, ROOT = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])


def start(folder, name):
    command = ["mpirun", "--oversubscribe", "-n", "2", PROGRAM, "--config-path", "configs/quickstart.yaml",
               "training.max_steps=1", "training.warmup_steps=1", "training.run_validation=false", f"data.cache_dir={folder}/cache",
               f"logging.run_dir={folder}/{name}", "logging.progress=line"]
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    begin = time.monotonic()
    run = subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True)
    said = re.search(r"first step after ([0-9.]+) s", run.stdout).group(1)
    print(f"{name}: first step {said} s after the program's start; the whole run took {time.monotonic() - begin:.2f} s "
          "by mpirun, with weights and a sample of text", flush=True)


with tempfile.TemporaryDirectory() as temporary:
    for which in ("first start", "second start", "third start"):
        start(temporary, which)
