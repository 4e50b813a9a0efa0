"""Slurm with two nodes, emulated on this machine, in namespaces of its own: no port, process or host name of it is seen outside."""

import os
import pathlib
import select
import shutil
import signal
import socket
import subprocess
import sys
import time

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "salloc", "unshare", "ip")
NODES = ("n1", "n2")
CPUS = 4  # of each node
START_SECONDS = 60

# cred_expire is the time in seconds for which a requeued job is held back.
CONFIGURATION = """
ClusterName=cairn
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort=17000
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge/socket,cred_expire=5
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/%n.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
MpiDefault=none
SchedulerParameters=bf_interval=1,sched_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=1
JobRequeue=1
KillWait=5
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing():
    """Why this machine cannot emulate a cluster, or ''."""
    for program in PROGRAMS:
        if shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin:/sbin") is None:
            return f"{program} is not installed"
    if os.geteuid() != 0:
        return "Slurm's daemons need root"
    return "" if inside() or subprocess.run(["unshare", "-nmpf", "--mount-proc", "true"], check=False).returncode == 0 else \
        "this machine makes no namespaces"


def inside():
    return os.environ.get("CAIRN_TEST_NAMESPACES") == "1"


def enter_namespaces():
    """Starts this program again in namespaces of its own; all its processes end with it. Process 1 there is a shell, which reaps: Slurm
    waits for processes whose parents have ended."""
    os.environ["CAIRN_TEST_NAMESPACES"] = "1"
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    os.execvp("unshare", ["unshare", "-nmpf", "--kill-child", "--mount-proc", "bash", "-c", '"$@" & wait $!', "bash", sys.executable, *sys.argv])


class Cluster:
    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.daemons = {}
        self.name_hosts()
        for name in ("munge", "state", *NODES):
            (self.root / name).mkdir()
        nodes = [f"NodeName={node} NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 Port={17001 + i} CPUs={CPUS} State=UNKNOWN"
                 for i, node in enumerate(NODES)]
        configuration = CONFIGURATION.format(root=self.root, host=socket.gethostname(), nodes="\n".join(nodes))
        (self.root / "slurm.conf").write_text(configuration)
        os.environ["SLURM_CONF"] = str(self.root / "slurm.conf")
        self.start_munge()
        self.start("slurmctld", "-D")
        for node in NODES:
            self.start_node(node)
        self.wait_for_nodes()

    def name_hosts(self):
        """Makes all host names mean the loopback. The second address is for the resolver, which may find no name on a machine that has
        only 127.0.0.1."""
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        subprocess.run(["ip", "address", "add", "198.51.100.1/32", "dev", "lo"], check=True)
        hosts = self.root / "hosts"
        hosts.write_text(f"127.0.0.1 localhost {' '.join(NODES)} {socket.gethostname()}\n")
        subprocess.run(["mount", "--bind", str(hosts), "/etc/hosts"], check=True)

    def start_munge(self):
        folder = self.root / "munge"
        (folder / "key").write_bytes(os.urandom(1024))
        (folder / "key").chmod(0o600)
        files = [f"--{name}={folder / name}" for name in ("socket", "pid-file", "log-file", "seed-file")]
        subprocess.run(["munged", "--force", f"--key-file={folder / 'key'}", *files], check=True)  # returns when it listens

    def start(self, program, *arguments):
        name = " ".join((program, *arguments))
        self.daemons[name] = subprocess.Popen([program, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                              stderr=subprocess.DEVNULL)

    def start_node(self, node):
        self.start("slurmd", "-D", "-N", node)

    def kill_node(self, node):
        """Ends the node's daemon and all that runs on it, and tells the controller."""
        daemon = self.daemons.pop(f"slurmd -D -N {node}")
        daemon.kill()
        daemon.wait()
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if f"SLURMD_NODENAME={node}".encode() in (process / "environ").read_bytes().split(b"\0"):
                    os.kill(int(process.name), 9)
            except OSError:  # it has ended
                pass
        subprocess.run(["scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=killed"], check=True)

    def restore_node(self, node):
        self.start_node(node)
        subprocess.run(["scontrol", "update", f"NodeName={node}", "State=RESUME"], check=True)
        self.wait_for_nodes()

    def wait_for_nodes(self):
        """Runs a program on both nodes as soon as the controller knows them."""
        end = time.monotonic() + START_SECONDS
        done = None
        while time.monotonic() < end and not any(daemon.poll() is not None for daemon in self.daemons.values()):
            done = subprocess.run(["srun", f"--nodes={len(NODES)}", "true"], capture_output=True, text=True, check=False,
                                  timeout=START_SECONDS)
            if done.returncode == 0:
                return
        raise AssertionError(f"the cluster does not start: {done.stderr if done else ''}\n{self.logs()}")

    def logs(self):
        return "\n".join(f"{path.name}:\n{path.read_text(errors='replace')[-2000:]}" for path in self.root.glob("*.log"))

    def stop(self):
        for daemon in self.daemons.values():
            daemon.terminate()
        for daemon in self.daemons.values():
            daemon.wait()
        pid = int((self.root / "munge" / "pid-file").read_text())
        munged = os.pidfd_open(pid)
        os.kill(pid, signal.SIGTERM)
        select.select([munged], [], [])  # it is no child, and removes files until it has ended
        os.close(munged)
        subprocess.run(["umount", "/etc/hosts"], check=True)
