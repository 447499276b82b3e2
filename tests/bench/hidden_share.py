"""How much of the gradients' reduction over two ranks hides behind the backward, from the ranks' timelines.

usage: hidden_share.py STEP_BENCH [--launcher PREFIX] [OPTION=VALUE ...]

PREFIX starts two ranks, as "mpirun --oversubscribe -n 2" (the default) does; to see anything it has to start them on two
nodes, or in two network namespaces with a shaped link: on shared memory a reduction is work of the same core. OPTION=VALUE
goes to STEP_BENCH; the default is the 10M model, batch 8 of 256 tokens, f32.

A reducer is busy from a bucket's grads_ready to its sum. Hidden is what of the busy time of all reducers together falls into
the stage's backward; the rest is exposed: nothing computes meanwhile. Under zero=1 or 2 the gatherer of parameters is busy too,
from a bucket's update to its gather, and under zero=3 while it gathers a unit; a second line says what of all that falls into ops
of the compute queue."""
import json
import os
import pathlib
import shlex
import statistics
import subprocess
import sys
import tempfile

WARM_STEPS = 2


def union(spans):
    merged = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([begin, end])
    return merged


def length(spans):
    return sum(end - begin for begin, end in spans)


def overlap(some, others):
    return sum(max(0, min(a[1], b[1]) - max(a[0], b[0])) for a in some for b in others)


def rows_of(events):
    return {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}


def busy_spans(events, actor="gradient_reducer", message="grads_ready"):
    """Of all actors of that name: between two waits for their message."""
    rows = rows_of(events)
    spans = []
    for row in (tid for tid, name in rows.items() if name.startswith(actor)):
        waits = sorted((e["ts"], e["ts"] + e["dur"]) for e in events
                       if e["ph"] == "X" and e["tid"] == row and e["name"] == message)
        spans += [(one[1], following[0]) for one, following in zip(waits, waits[1:])]
    return spans


def unit_spans(events):
    """The gathers of units, where parameters are shared out."""
    return [(e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X" and e.get("cat") == "gather"]


def hidden_behind_ops(events):
    """Busy time of reducers and gatherer together, and what of it falls into ops, a step, after the warm ones."""
    rows = rows_of(events)
    begins = sorted(e["ts"] for e in events if e["ph"] == "X" and e["name"] == "B" and rows[e["tid"]] == "stage")
    first, last, n_steps = begins[WARM_STEPS], begins[-1], len(begins) - 1 - WARM_STEPS
    busy = union(busy_spans(events) + busy_spans(events, "parameter_gatherer", "updated") + unit_spans(events))
    busy = [(b, e) for b, e in busy if first <= b < last]
    ops = union((e["ts"], e["ts"] + e["dur"]) for e in events
                if e["ph"] == "X" and e.get("cat") == "op" and rows[e["tid"]] == "compute queue")
    return length(busy) / n_steps, overlap(busy, ops) / n_steps


def steps_of(events):
    """Each step's backward and the reducers' busy spans from its begin to the next one's."""
    rows = rows_of(events)
    backwards = sorted((e["ts"], e["ts"] + e["dur"]) for e in events
                       if e["ph"] == "X" and e["name"] == "B" and rows[e["tid"]] == "stage")
    busy = union(busy_spans(events))
    for backward, following in zip(backwards[WARM_STEPS:], backwards[WARM_STEPS + 1:]):
        yield backward, [span for span in busy if backward[0] <= span[0] < following[0]]


def main():
    arguments = sys.argv[1:]
    bench = os.path.abspath(arguments.pop(0))
    launcher = "mpirun --oversubscribe -n 2"
    if arguments and arguments[0] == "--launcher":
        launcher, arguments = arguments[1], arguments[2:]
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run([*shlex.split(launcher), bench, "steps=8", *arguments, f"trace={folder}"], check=True,
                             stdout=subprocess.PIPE, text=True, env=environment)
        ranks = [json.loads(path.read_text())["traceEvents"] for path in sorted(pathlib.Path(folder).iterdir())]
    figures = json.loads([line for line in run.stdout.splitlines() if line.startswith("{")][-1])
    print(f"{figures['model']} {figures['mode']} B {figures['B']} T {figures['T']}, 2 ranks: step {figures['ms']} ms")
    for rank, events in enumerate(ranks):
        steps = list(steps_of(events))
        reduction = statistics.median(length(busy) for _, busy in steps)
        hidden = statistics.median(overlap(busy, [backward]) for backward, busy in steps)
        backward = statistics.median(length([span]) for span, _ in steps)
        print(f"rank {rank}: backward {backward / 1e3:.1f} ms, reduction {reduction / 1e3:.1f} ms, hidden "
              f"{hidden / 1e3:.1f} ms: share {hidden / reduction:.3f}   medians of {len(steps)} steps", flush=True)
        if any(argument in ("zero=1", "zero=2", "zero=3") for argument in arguments):
            busy, behind = hidden_behind_ops(events)
            print(f"rank {rank}: reductions and gathers {busy / 1e3:.1f} ms a step, behind ops {behind / 1e3:.1f} ms: share "
                  f"{behind / busy:.3f}", flush=True)


main()
