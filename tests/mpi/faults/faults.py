"""Breaks one of three ranks in every way that a rank breaks, and checks how the job ends: mpirun returns
non-zero in time, one line says the cause, and no process, shared memory or session folder is left.
Usage: faults.py MPIRUN PROGRAM FAULT..."""
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

N_RANKS = 3
STALL_SECONDS = 2
LIMIT_SECONDS = 5
MARK = "LLM_TEST_FAULT_RUN"

# fault: (exit code, cause line of the rank). Where a rank dies without a word, mpirun says it.
OURS = {
    "throw": (70, r"error: rank 1: injected failure$"),
    "together": (70, r"error: rank [012]: injected failure$"),
    "config": (78, r"error: rank 1: model\.num_heads: 3 does not divide 8$"),
    "exit": (70, r"error: rank 1: the program ended without shutting MPI down$"),
    "thread": (70, r"error: rank 1: of a thread$"),
    "stop": (70, r"error: rank [02]: stalled: nothing moved for 2 s; waits of this rank:$"),
    "header": (70, r"error: rank 2: a message from rank 1 on tag 1 is not the one expected: expected \[user step 300 "
                   r"index 0 part 0: 20000 f32\], arrived \[user step 301 index 0 part 0: 20000 f32\]$"),
}
MPIRUNS = {
    "quick_exit": (1, r"mpirun has exited due to process rank 1 "),
    "kill": (137, r"mpirun noticed that process rank 1 with PID \d+ .* exited on signal 9"),
    "segv": (139, r"mpirun noticed that process rank 1 with PID \d+ .* exited on signal 11"),
}


def processes_with(mark):
    """Ids of the processes whose environment holds `mark`; their own threads and zombies aside."""
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            pass
    return found


def unused_shared_memory():
    """Files in /dev/shm that no process has mapped: what a run leaves behind. Other jobs' are mapped."""
    mapped = set()
    for maps in pathlib.Path("/proc").glob("[0-9]*/maps"):
        try:
            mapped.update(re.findall(r"/dev/shm/\S+", maps.read_text()))
        except OSError:
            pass
    return {str(f) for f in pathlib.Path("/dev/shm").glob("**/*") if f.is_file()} - mapped


def until(holds, seconds=2.0):
    """Waits for what follows a job's end within moments; whether it holds."""
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.05)
    return holds()


def run(mpirun, program, fault, folder):
    mark = f"{os.getpid()}-{fault}"
    environment = dict(os.environ, TMPDIR=folder, **{MARK: mark})
    # A sanitizer's build dies of the signal itself, as any other.
    environment["ASAN_OPTIONS"] = os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0:handle_segv=0"
    command = [mpirun, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(N_RANKS),
               program, fault, str(STALL_SECONDS)]
    before = unused_shared_memory()
    job = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    watchdog = threading.Timer(60, lambda: [os.kill(process, signal.SIGKILL) for process in processes_with(mark)])
    watchdog.start()
    begin, lines = time.monotonic(), []
    for line in job.stdout:
        if line == "breaks now\n":
            begin = min(begin, time.monotonic()) if "breaks now" in lines else time.monotonic()
        lines.append(line.rstrip("\n"))
    code = job.wait()
    seconds = time.monotonic() - begin
    watchdog.cancel()
    return list(problems(fault, code, seconds, lines, mark, before, folder)), seconds


def problems(fault, code, seconds, lines, mark, before, folder):
    causes = [line for line in lines if line.startswith("error: ")]
    expected_code, pattern = OURS.get(fault) or MPIRUNS[fault]
    if code != expected_code:
        yield f"mpirun returned {code}, not {expected_code}"
    limit = LIMIT_SECONDS + (STALL_SECONDS if fault == "stop" else 0)
    if seconds > limit:
        yield f"took {seconds:.1f} s, more than {limit} s"
    if fault in MPIRUNS:
        if causes:
            yield f"a rank that did not fail says {causes}"
        causes = [line for line in lines if line.startswith("mpirun ")]
        pattern_holds = any(re.match(pattern, line) for line in causes)
    else:
        pattern_holds = len(causes) == 1 and re.match(pattern, causes[0])
        if fault == "stop" and not any("waits for token(" in line for line in lines):
            yield "no wait table"
    if "breaks now" not in lines:
        yield "nothing broke"
    if not pattern_holds:
        yield f"the cause is not one line like {pattern}: {lines}"
    if not until(lambda: not processes_with(mark)):
        yield f"processes are left: {processes_with(mark)}"
    if not until(lambda: not unused_shared_memory() - before):
        yield f"shared memory is left: {unused_shared_memory() - before}"
    left = [str(path) for path in pathlib.Path(folder).rglob("*") if path.is_file()]
    if left:
        yield f"session files are left: {left}"


def main():
    mpirun, program, *faults = sys.argv[1:]
    n_bad = 0
    for fault in faults or [*OURS, *MPIRUNS]:
        with tempfile.TemporaryDirectory(prefix="llm-faults-") as folder:
            found, seconds = run(mpirun, program, fault, folder)
        n_bad += bool(found)
        print(f"{'not ok' if found else 'ok'} - a rank that breaks by {fault} ends all in {seconds:.1f} s", flush=True)
        for problem in found:
            print(f"    {problem}")
    sys.exit(bool(n_bad))


main()
