"""A SLURM cluster on one machine: nodes n0, n1, ... are network namespaces with host names of their own, joined by a bridge;
slurmctld and a slurmd for each run from the distribution's packages. `contain()` first moves the test into namespaces of
its own: when its process ends, however it ends, the kernel ends the daemons and jobs and takes network, mounts and files
with them."""
import os
import pathlib
import shutil
import subprocess
import sys
import time

SKIPPED = 77
DAEMONS = {"slurmctld": "slurm-wlm", "slurmd": "slurm-wlm", "srun": "slurm-wlm", "munged": "munge", "ip": "iproute2"}
PATH = os.environ["PATH"] + ":/usr/sbin:/sbin"
CONFIGURATION = """
ClusterName=test
SlurmctldHost=n0
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=5
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdSpoolDir={folder}/spool-%n
StateSaveLocation={folder}/state
TmpFS={folder}/tmp-%n
KillWait=10
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,sched_min_interval=100000
SlurmctldParameters=preempt_send_user_signal
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
NodeName=n[0-{last}] CPUs=2 RealMemory=500 State=UNKNOWN
PartitionName=low Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=20
PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10
"""


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(SKIPPED)


def contain():
    """Goes on in namespaces of its own, as their first process; or skips, saying why."""
    missing = sorted({package for name, package in DAEMONS.items() if not shutil.which(name, path=PATH)})
    if missing:
        skip(f"SLURM is not here; as root: apt-get install {' '.join(missing)}")
    if os.environ.get("LLM_TEST_CONTAINED"):
        return
    if os.geteuid() != 0:
        skip("nodes are network namespaces, which only root can make")
    contained = ["unshare", "--mount", "--net", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]
    probe = subprocess.run([*contained, "ip", "link", "add", "probe", "type", "bridge"], capture_output=True, text=True,
                           env=os.environ | {"PATH": PATH})
    if probe.returncode:
        skip(f"no network namespaces here: {probe.stderr.strip()}")
    os.environ |= {"LLM_TEST_CONTAINED": "1", "PATH": PATH}
    os.execvp("unshare", [*contained, sys.executable, *sys.argv])


def call(*command, **options):
    return subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True, **options).stdout


class Cluster:
    """Started by its constructor; `folder` becomes an empty file system in memory that all nodes share."""

    def __init__(self, n_nodes, folder):
        self.n_nodes, self.folder, self.nodes = n_nodes, pathlib.Path(folder), []
        for place in (self.folder, "/dev/shm"):
            call("mount", "-t", "tmpfs", "tmpfs", place)
        self.start_network()
        self.start_munge()
        self.environment = os.environ | {"SLURM_CONF": f"{self.folder}/slurm.conf"}
        (self.folder / "slurm.conf").write_text(CONFIGURATION.format(folder=self.folder, last=n_nodes - 1))
        # A private mount of /sys would hide what it looks for.
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
        (self.folder / "state").mkdir()
        self.on(0, "slurmctld", "-c")
        for i in range(n_nodes):
            for name in (f"spool-n{i}", f"tmp-n{i}"):
                (self.folder / name).mkdir()
            self.on(i, "slurmd", "-N", f"n{i}")
        self.wait(lambda: self.on(0, "sinfo", "-h", "-p", "low", "-o", "%T%D") == f"idle{n_nodes}\n", 30, "idle nodes")

    def start_network(self):
        hosts = self.folder / "hosts"
        hosts.write_text("127.0.0.1 localhost\n" + "".join(f"10.77.0.{10 + i} n{i}\n" for i in range(self.n_nodes)))
        call("mount", "--bind", hosts, "/etc/hosts")
        call("ip", "link", "set", "lo", "up")
        call("ip", "link", "add", "switch", "type", "bridge")
        call("ip", "link", "set", "switch", "up")
        for i in range(self.n_nodes):
            # Open MPI's files in /dev/shm are a node's own.
            script = f"hostname n{i} && mount -t tmpfs tmpfs /dev/shm && echo up && exec sleep infinity"
            holder = subprocess.Popen(["unshare", "--net", "--uts", "--mount", "sh", "-c", script], stdout=subprocess.PIPE, text=True)
            holder.stdout.readline()
            self.nodes.append(holder)
            call("ip", "link", "add", f"port{i}", "type", "veth", "peer", "name", "eth0", "netns", holder.pid)
            call("ip", "link", "set", f"port{i}", "master", "switch", "up")
            self.on(i, "ip", "link", "set", "lo", "up", env=os.environ)
            self.on(i, "ip", "addr", "add", f"10.77.0.{10 + i}/24", "dev", "eth0", env=os.environ)
            self.on(i, "ip", "link", "set", "eth0", "up", env=os.environ)

    def start_munge(self):
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        self.folder.chmod(0o755)
        names = {"key-file": "key", "socket": "sock", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        call("munged", "--force", *(f"--{option}={self.folder}/munge.{name}" for option, name in names.items()))

    def command(self, node, *command, folder="/"):
        return ["nsenter", "--target", str(self.nodes[node].pid), "--net", "--uts", "--mount", f"--wdns={folder}", *map(str, command)]

    def on(self, node, *command, env=None, folder="/", **options):
        """What the command prints on that node; a failure is an error."""
        done = subprocess.run(self.command(node, *command, folder=folder), capture_output=True, text=True, stdin=subprocess.DEVNULL,
                              env=env or self.environment, **options)
        if done.returncode:
            raise RuntimeError(f"{command} on n{node}: exit {done.returncode}\n{done.stdout}{done.stderr}{self.logs()}")
        return done.stdout

    def logs(self):
        return "".join(f"--- {path.name}\n" + "".join(path.read_text().splitlines(True)[-12:])
                       for path in sorted(self.folder.glob("*.log")))

    def wait(self, condition, seconds, what, detail=lambda: ""):
        """The first true value of `condition()`."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if value := condition():
                return value
            time.sleep(0.1)
        raise AssertionError(f"no {what} within {seconds} s\n{detail()}{self.logs()}")
