"""Training over two nodes that are network namespaces, joined by 1 Gbit/s with 1 ms: the bits of one node, and what is
said when the link is cut. Needs root, iproute2 and /dev/net/tun; elsewhere it is skipped with one line.
Usage: netns_test.py PROGRAM ROOT DELAY_SWITCH, with tests/cli in PYTHONPATH"""
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import unittest

import program

SWITCH = pathlib.Path(sys.argv.pop(3)).resolve()
DELAY_US, MBIT = 1000, 1000
STALL_SECONDS = 5
NODES = [f"llm-net-{os.getpid()}-{i}" for i in range(2)]
ADDRESSES = ["10.91.0.10", "10.91.0.11"]
# What mpirun calls in place of ssh: the host is an address.
AGENT = """#!/bin/sh
host=$1
shift
case $host in
{cases}
esac
exec ip netns exec $node unshare --uts sh -c 'hostname $0; exec sh -c "$1"' $node "$*"
"""


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


def ip(*arguments, check=True):
    return subprocess.run(["ip", *arguments], check=check, capture_output=True, text=True)


def why_not():
    """Why this machine has no namespaces to test in, and what it would take; empty where it has."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool, package in (("ip", "iproute2"), ("unshare", "util-linux"), ("mpirun", "openmpi-bin")):
        if shutil.which(tool) is None:
            return f"{tool} is not here: apt-get install {package}"
    if not os.path.exists("/dev/net/tun"):
        return "/dev/net/tun is not here: the container needs this device"
    made = ip("netns", "add", NODES[0], check=False)
    if made.returncode != 0:
        return f"no network namespace can be made: {made.stderr.strip()}"
    ip("netns", "del", NODES[0])
    return ""


class Network:
    """Two namespaces and the switch between them, gone with close()."""

    def __init__(self, folder):
        self.switch = None
        try:
            for node in NODES:
                ip("netns", "add", node)
                ip("-n", node, "link", "set", "lo", "up")
            self.switch = subprocess.Popen([str(SWITCH), *NODES, str(DELAY_US), str(MBIT)], stdout=subprocess.PIPE,
                                           stderr=subprocess.PIPE, text=True)
            if self.switch.stdout.readline() != "up\n":
                raise RuntimeError(f"the switch does not run: {self.switch.stderr.read()}")
            for i, node in enumerate(NODES):
                ip("-n", node, "link", "set", "v0", "address", f"02:00:00:00:00:0{i}")
                ip("-n", node, "addr", "add", f"{ADDRESSES[i]}/24", "dev", "v0")
                ip("-n", node, "link", "set", "v0", "up")
            cases = "\n".join(f"  {address} | {node}) node={node} ;;" for address, node in zip(ADDRESSES, NODES))
            self.agent = folder / "agent.sh"
            self.agent.write_text(AGENT.format(cases=cases))
            self.agent.chmod(0o755)
        except BaseException:
            self.close()
            raise

    def mpirun(self, ranks):
        """So many ranks, half of them on each node."""
        hosts = ",".join(f"{address}:{ranks // 2}" for address in ADDRESSES)
        return [str(self.agent), NODES[0], "mpirun", "--host", hosts, "-n", str(ranks), "--bind-to", "none",
                "--mca", "plm", "rsh", "--mca", "plm_rsh_agent", str(self.agent), "--mca", "btl", "tcp,vader,self",
                "--mca", "oob_tcp_if_include", "10.91.0.0/24", "--mca", "btl_tcp_if_include", "10.91.0.0/24"]

    @staticmethod
    def cut():
        ip("-n", NODES[1], "link", "set", "v0", "down")

    def close(self):
        for node in NODES:
            found = ip("netns", "pids", node, check=False)
            for process in found.stdout.split() if found.returncode == 0 else []:
                try:
                    os.kill(int(process), signal.SIGKILL)
                except ProcessLookupError:
                    pass
        if self.switch is not None:
            self.switch.kill()
            self.switch.communicate()
            self.switch = None
        for node in NODES:
            ip("netns", "del", node, check=False)


class TwoNodes(program.ProgramTest):
    def setUp(self):
        super().setUp()
        self.network = Network(self.folder)
        self.addCleanup(self.network.close)

    def start_on_nodes(self, *arguments, ranks, wrapper=()):
        command = self.network.mpirun(ranks) + [*wrapper, str(program.PROGRAM), *map(str, arguments)]
        process = subprocess.Popen(command, cwd=self.folder, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, env=self.environment, start_new_session=True)
        process.begin = time.monotonic()
        self.addCleanup(self.end, process)
        self.addCleanup(self.network.close)  # first: daemons of the far node hold the process's pipes
        return process

    def test_training_over_two_nodes_has_the_bits_of_one(self):
        layouts = {
            "dp": (2, []),
            "zero": (2, ["distributed.zero_stage=2"]),
            "pp": (2, ["distributed.parallel_strategy=pp", "distributed.pp_n_microbatches=2"]),
        }
        for name, (ranks, fields) in layouts.items():
            with self.subTest(layout=name):
                one = self.train(f"one-{name}", *fields, ranks=ranks)
                data = [f"data.dataset_path={self.text()}", f"logging.run_dir={self.folder}/two-{name}"]
                done = self.finish(self.start_on_nodes(*program.TINY, *data, *fields, ranks=ranks), timeout=120)
                self.assertEqual(done.code, 0, done)
                self.assertIn("(1 a node)", done.out)
                self.assertIn("(2 a node)", one.out)
                self.check_same(f"two-{name}", f"one-{name}")

    def test_a_link_that_is_cut_ends_both_sides_and_the_peer_is_named(self):
        data = [f"data.dataset_path={self.text()}", f"logging.run_dir={self.folder}/run", "training.max_steps=1000000",
                "training.epochs=1000000", f"distributed.collective_timeout_seconds={STALL_SECONDS}"]
        note = self.folder / "note.sh"  # each rank's exit code: mpirun sees that of its own side alone
        note.write_text(f'#!/bin/sh\ntrap "" TERM CONT\n"$@"\necho $? > {self.folder}/code-$OMPI_COMM_WORLD_RANK\n')
        note.chmod(0o755)
        process = self.start_on_nodes(*program.TINY, *data, ranks=2, wrapper=[str(note)])
        metrics = self.folder / "run/metrics.jsonl"
        program.wait_until(lambda: process.poll() is not None or
                           metrics.exists() and metrics.read_text().count('"kind":"step"') >= 2)
        self.assertIsNone(process.poll(), "the run has begun")
        self.network.cut()
        begin = time.monotonic()
        tables = [self.folder / f"run/stall-rank-{rank}.txt" for rank in range(2)]

        def ranks_left():
            pids = [pid for node in NODES for pid in ip("netns", "pids", node).stdout.split()]
            return [pid for pid in pids if b"llm-train" in executable(pid)]

        program.wait_until(lambda: not ranks_left(), 60)
        self.assertLess(time.monotonic() - begin, STALL_SECONDS + 20)  # 5 on a machine that has nothing else to do
        codes = {rank: self.folder / f"code-{rank}" for rank in range(2)}
        program.wait_until(lambda: all(code.exists() for code in codes.values()), 5)
        for rank, table in enumerate(tables):
            self.assertEqual(codes[rank].read_text(), "70\n", rank)
            said = table.read_text().splitlines()[0]
            self.assertRegex(said, rf"stalled: .* (unreachable|silent): .*rank {1 - rank}\b", rank)


def executable(process):
    try:
        return os.readlink(f"/proc/{process}/exe").encode()
    except OSError:
        return b""


if __name__ == "__main__":
    if reason := why_not():
        skip(reason)
    program.main()
