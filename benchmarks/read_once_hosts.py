#!/usr/bin/env python3
"""Loading a state that all ranks need, on hosts that share a store of bounded rate, with and without LoadOptions::read_once.

usage: read_once_hosts.py BIN_DIRECTORY [--quick] [--rate BYTES_PER_SECOND]

Eight ranks on four hosts, which are network namespaces of this machine, connected by a bridge. A Unix socket does not lead from one to
another, so ranks of different hosts exchange bytes by TCP, over TLS. All ranks read through one token bucket, which counts the bytes. One
JSON object a line: {name, value, unit, limit, ratio, goal, met}. The limit of a time is the bytes of the state, divided by the rate. The
ranks check what they have loaded. `busy` is the processor time of all ranks per second: near the number of cores, the cores are the
limit and not the store, and the rate is too high for this machine.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

HOSTS = 4
RANKS_OF_HOST = 2
RATE = 150_000_000  # hosts exchange six times this, which takes two thirds of two cores
INSIDE = "CAIRN_BENCHMARK_NAMESPACES"


def skip(why):
    print(f"skipped: {why}", file=sys.stderr)
    sys.exit(0)


def enter_namespaces():
    """Starts this program again in namespaces of its own, with which its hosts and processes end."""
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    for program in ("ip", "mount", "unshare"):
        if shutil.which(program) is None:
            skip(f"{program} is not installed")
    command = ["unshare", "-nmpf", "--mount-proc", "--kill-child"]
    tried = subprocess.run([*command, "true"], stderr=subprocess.PIPE, text=True, check=False)
    if tried.returncode != 0:
        skip(f"this machine makes no namespaces: {tried.stderr.strip()}")
    os.environ[INSIDE] = "1"
    os.execvp("unshare", [*command, sys.executable, *sys.argv])


def ip(*words):
    subprocess.run(["ip", *words], check=True, stderr=subprocess.PIPE, text=True)


def make_hosts():
    """Returns the names of the hosts' network namespaces, and their addresses."""
    subprocess.run(["mount", "-t", "tmpfs", "none", "/run"], check=True, stderr=subprocess.PIPE, text=True)  # `ip netns` keeps the names there
    ip("link", "add", "bridge", "type", "bridge")
    ip("link", "set", "bridge", "up")
    hosts = []
    for number in range(HOSTS):
        name, address = f"host{number}", f"10.79.0.{number + 1}"
        ip("netns", "add", name)
        ip("link", "add", f"port{number}", "type", "veth", "peer", "name", "net0", "netns", name)
        ip("link", "set", f"port{number}", "master", "bridge", "up")
        ip("-n", name, "address", "add", f"{address}/24", "dev", "net0")
        ip("-n", name, "link", "set", "net0", "up")
        ip("-n", name, "link", "set", "lo", "up")
        hosts.append((name, address))
    return hosts


def free_memory():
    text = pathlib.Path("/proc/meminfo").read_text(encoding="ascii")
    return int(text.split("MemAvailable:")[1].split()[0]) * 1024


def main():
    if INSIDE not in os.environ:
        enter_namespaces()
    binaries, quick = pathlib.Path(sys.argv[1]), "--quick" in sys.argv[2:]
    rate = int(sys.argv[sys.argv.index("--rate") + 1]) if "--rate" in sys.argv else RATE
    mib, repeats = (512, 1) if quick else (1024, 3)
    ranks = HOSTS * RANKS_OF_HOST
    if free_memory() < (ranks + 2) * mib * 2**20:
        skip(f"{ranks} ranks with a state of {mib} MiB each, and its checkpoint in memory, need {(ranks + 2) * mib} MiB of free memory")
    try:
        hosts = make_hosts()
    except subprocess.CalledProcessError as error:
        skip(f"this machine makes no hosts: {' '.join(error.cmd)}: {error.stderr.strip()}")
    with tempfile.TemporaryDirectory(prefix="cairn_hosts_", dir="/dev/shm") as directory:
        pathlib.Path(directory, "meter").write_bytes(bytes(4096))
        processes = []
        for rank in range(ranks):
            place = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank % RANKS_OF_HOST),
                     "LOCAL_WORLD_SIZE": str(RANKS_OF_HOST), "MASTER_ADDR": hosts[0][1], "MASTER_PORT": "29500"}
            command = ["ip", "netns", "exec", hosts[rank // RANKS_OF_HOST][0], str(binaries / "cairn_save_load_benchmark"), "--on-hosts",
                       *map(str, (mib, rate, HOSTS, repeats, directory))]
            processes.append(subprocess.Popen(command, env={**os.environ, **place}))
        # In the ranks' order: if one fails, the others end by its failure.
        failed = [rank for rank, process in enumerate(processes) if process.wait() != 0]
    if failed:
        sys.exit(f"ranks failed: {failed}")


if __name__ == "__main__":
    main()
