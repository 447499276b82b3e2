"""What a save of GPT-2 124M with the optimizer's state costs: how long training waits, how fast it is written beside a plain
write of as many bytes, and how much longer the steps are meanwhile. Both kinds, 1 rank and 2.

usage: checkpoint_bench.py LLM_TRAIN ROOT [FOLDER]   (FOLDER: on the disk to be measured)"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

PROGRAM, ROOT = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
FIELDS = ["data.dataset_path=docs/*.md", "data.val_dataset_path=null", "training.run_validation=false", "data.max_seq_len=256",
          "training.global_batch_size=4", "training.warmup_steps=1", "logging.log_interval=1",
          "training.max_steps=9", "distributed.pp_n_microbatches=1", "logging.progress=off"]


def train(folder, name, ranks, *fields):
    command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(ranks), PROGRAM, "--config-path", "configs/gpt2-124m.yaml",
               *FIELDS, f"training.batch_size={4 // ranks}", f"data.cache_dir={folder}/cache", f"logging.run_dir={folder}/{name}", *fields]
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    return [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]


def write_plainly(path, n_bytes):
    """Bytes a second of a file of so many bytes, forced to the disk."""
    block = os.urandom(1 << 22)
    begin = time.monotonic()
    with path.open("wb") as file:
        for _ in range(n_bytes // len(block)):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    seconds = time.monotonic() - begin
    path.unlink()
    return n_bytes / seconds


with tempfile.TemporaryDirectory(dir=sys.argv[3] if len(sys.argv) > 3 else None) as temporary:
    folder = pathlib.Path(temporary)
    for kind, ranks in (("full", 1), ("sharded", 1), ("sharded", 2)):
        strategy = ["distributed.parallel_strategy=zero"] if ranks > 1 else []
        lines = train(folder, f"{kind}-{ranks}", ranks, *strategy, f"checkpoint.state_dict_type={kind}", "checkpoint.save_interval_steps=3",
                      "checkpoint.keep_last_n=1")
        first, *_, last = [line for line in lines if line["kind"] == "checkpoint"]
        steps = [line["seconds"] for line in lines if line["kind"] == "step"]
        plain = write_plainly(folder / "plain", first["bytes"])
        rate = last["bytes"] / last["seconds"]  # nothing else runs after the last step
        print(f"{kind}, {ranks} rank{'s'[:ranks - 1]}: {first['bytes'] * 1e-9:.2f} GB; training waited {first['blocked_seconds']:.2f} s; "
              f"written in {first['seconds']:.2f} s beside training, in {last['seconds']:.2f} s after it: {rate * 1e-6:.0f} MB/s, "
              f"{100 * rate / plain:.0f} % of a plain write's {plain * 1e-6:.0f} MB/s; steps {steps[2]:.2f} s before the save, "
              f"{steps[3]:.2f} s beside it", flush=True)
