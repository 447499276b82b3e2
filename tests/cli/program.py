"""What the tests of the whole program share: a folder of its own for each test, starting llm-train alone or under
mpirun, and readers of its files that use nothing of it. A test file is called with the program and the project's root."""
import json
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = pathlib.Path(sys.argv[1]).resolve()
ROOT = pathlib.Path(sys.argv[2]).resolve()
MPIRUN = ["mpirun", "--oversubscribe", "--bind-to", "none"]
# What a launcher or a user may have set and a test must not see.
FOREIGN = re.compile(r"LLM_|SLURM_|OMPI_COMM_|OMPI_MCA_|PMIX_|BACKEND$|NUM_NODES$|NODE_RANK$|GPUS_PER_NODE$|MASTER_")
# A model that takes milliseconds a step, as fields of the command line.
TINY = ["model.hidden_size=32", "model.num_heads=2", "model.num_layers=2", "model.vocab_size=256",
        "model.max_seq_len=32", "model.dropout=0", "model.use_rope=true", "data.max_seq_len=32",
        "training.batch_size=2", "training.max_steps=6", "logging.progress=line"]


class Done:
    """A finished process: code, out, err and the seconds that it took."""

    def __init__(self, code, out, err, seconds):
        self.code, self.out, self.err, self.seconds = code, out, err, seconds

    def causes(self):
        return [line for line in self.err.splitlines() if line.startswith("error:")]

    def __str__(self):
        return f"exit {self.code} after {self.seconds:.1f} s\n--- out\n{self.out}\n--- err\n{self.err}"


class ProgramTest(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="llm-train-test-"))
        self.addCleanup(shutil.rmtree, self.folder)
        kept = {name: value for name, value in os.environ.items() if not FOREIGN.match(name)}
        self.environment = kept | {"HOME": str(self.folder), "XDG_CACHE_HOME": str(self.folder / "cache"),
                                   "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

    def command(self, arguments, ranks=0, preload=""):
        launcher = MPIRUN + ["-n", str(ranks)] if ranks else []
        if preload:  # under the ranks, not under mpirun
            launcher += ["-x", f"LD_PRELOAD={preload}"]
        return launcher + [str(PROGRAM), *map(str, arguments)]

    def start(self, *arguments, ranks=0, env=None, preload=""):
        """A running process of its own process group, ended at the end of the test."""
        process = subprocess.Popen(self.command(arguments, ranks, preload), cwd=self.folder, text=True, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self.environment | (env or {}),
                                   start_new_session=True)
        process.begin = time.monotonic()
        self.addCleanup(self.end, process)
        return process

    @staticmethod
    def end(process):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()

    def finish(self, process, timeout=60):
        out, err = process.communicate(timeout=timeout)
        return Done(process.returncode, out, err, time.monotonic() - process.begin)

    def llm_train(self, *arguments, ranks=0, env=None, timeout=60, preload=""):
        return self.finish(self.start(*arguments, ranks=ranks, env=env, preload=preload), timeout)

    def train(self, run_dir, *arguments, ranks=0, env=None, timeout=60, preload=""):
        """A tiny run that has to succeed, on `text()` unless the arguments name other data."""
        data = [] if any("dataset_path" in a for a in arguments) else [f"data.dataset_path={self.text()}"]
        done = self.llm_train(*TINY, *data, f"logging.run_dir={run_dir}", *arguments, ranks=ranks, env=env,
                              timeout=timeout, preload=preload)
        self.assertEqual(done.code, 0, done)
        self.assertEqual(done.causes(), [], done)
        return done

    def write(self, name, content):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def text(self, name="text.txt", n_bytes=20000):
        """Words in an order that does not repeat soon; the same file each time."""
        words = ["actor", "bucket", "gradient", "loss", "message", "rank", "stage", "step", "token", "wait"]
        state, parts, size = 1, [], 0
        while size < n_bytes:
            state = state * 6364136223846793005 + 1442695040888963407 & (1 << 64) - 1
            parts.append(words[state >> 40 & 7] + (".\n" if state >> 50 & 7 == 0 else " "))
            size += len(parts[-1])
        path = self.folder / name
        if not path.exists():
            self.write(name, "".join(parts)[:n_bytes])
        return path

    def metrics(self, run_dir, kind="step"):
        lines = (self.folder / run_dir / "metrics.jsonl").read_text().splitlines()
        return [line for line in map(json.loads, lines) if line["kind"] == kind]

    def losses(self, run_dir):
        return [line["loss"] for line in self.metrics(run_dir)]

    def weights(self, run_dir):
        return (self.folder / run_dir / "model.safetensors").read_bytes()

    def check_near(self, run, expected):
        """Losses and final weights within rounding."""
        for kind in ("step", "validation"):
            ours, theirs = ([line["loss"] for line in self.metrics(r, kind)] for r in (run, expected))
            self.assertEqual(len(ours), len(theirs))
            for a, b in zip(ours, theirs):
                self.assertAlmostEqual(a, b, delta=1e-5 * b, msg=run)
        ours, theirs = (read_safetensors(self.weights(r)) for r in (run, expected))
        self.assertEqual({name: shape for name, (shape, _) in ours.items()}, {name: shape for name, (shape, _) in theirs.items()})
        for name, (_, values) in theirs.items():
            apart = sum((a - b) ** 2 for a, b in zip(ours[name][1], values)) ** 0.5
            self.assertLess(apart, 1e-3 * max(1, sum(b * b for b in values) ** 0.5), name)

    def check_same(self, run, expected="one"):
        """The same bits of losses and final weights."""
        for kind in ("step", "validation"):
            ours, theirs = ([line["loss"] for line in self.metrics(r, kind)] for r in (run, expected))
            self.assertEqual(ours, theirs, run)
        self.assertTrue(self.weights(run) == self.weights(expected), run)


def read_safetensors(data):
    """{name: (shape, values)} of float32 tensors, by the format's description; everything is held against it."""
    (n,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + n])
    assert header.pop("__metadata__", None) == {"format": "pt"}
    tensors, ends = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        assert entry["dtype"] == "F32" and begin == ends, (name, entry)
        n_values = 1
        for size in entry["shape"]:
            n_values *= size
        assert end - begin == 4 * n_values, (name, entry)
        tensors[name] = (entry["shape"], struct.unpack(f"<{n_values}f", data[8 + n + begin:8 + n + end]))
        ends = end
    assert 8 + n + ends == len(data), "bytes after the last tensor"
    return tensors


def children(pid):
    """Process ids of the llm-train ranks that the mpirun `pid` started."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split() if entry.name.isdigit() else []
            if fields and int(fields[1]) == pid and (entry / "exe").resolve() == PROGRAM:
                found.append(int(entry.name))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # ended meanwhile
    return sorted(found)


def shared_memory_of(pid):
    """The pattern of names below /dev/shm of the job that rank `pid` belongs to; other jobs of this machine come and go."""
    variables = (pathlib.Path("/proc") / str(pid) / "environ").read_bytes().split(b"\0")
    (job,) = [int(v.split(b"=")[1]) for v in variables if v.startswith(b"PMIX_NAMESPACE=")]
    return re.compile(rf"^vader_segment\..*\.{job:x}\.\d+$")


def wait_until(condition, seconds=30):
    """The first true value of `condition()`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds} s")


def main():
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
