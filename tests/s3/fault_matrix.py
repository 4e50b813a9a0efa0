#!/usr/bin/env python3
"""Plants every kind of fault in every operation at every rate, on all requests and on one kind of request, and counts the damage.

usage: fault_matrix.py S3_TESTS [--minutes M] [--kinds KIND,...] [--without KIND,...] [--operations OPERATION,...] [--seed N]

For each kind it prints the trials, and of these lost (a checkpoint that was reported as committed is not restored by a later clean job, or a
checkpoint of the run has a fault), wrong (an operation restored other values, or an older checkpoint without an error) and hung (it did not
end in time). Then the cells without a trial, which are none unless --minutes cut them off. The trials are in an order that --seed shuffles.
Ends with 0 if all of these are 0, with 77 where no server can be started. The server is Ceph's, or that at AWS_ENDPOINT_URL. Ceph's is
started anew from time to time, because it keeps the data of removed objects in memory for two hours.
"""

import argparse
import collections
import contextlib
import itertools
import os
import pathlib
import random
import select
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse

from fault_proxy import KINDS, FaultProxy

SERVER = pathlib.Path(__file__).with_name("s3_server.sh")
OPERATIONS = ["save", "save_parts", "retain", "restore", "prune", "copy"]
RATES = [0.05, 0.4, 1.0]
# One kind of request, which the operation sends.
REQUESTS = {"save": ["list", "GET", "PUT", "DELETE"], "save_parts": ["part", "POST", "GET"], "retain": ["list", "GET", "PUT", "DELETE"],
            "restore": ["list", "GET"], "prune": ["list", "GET", "PUT", "DELETE"], "copy": ["GET", "PUT", "DELETE"]}
DEADLINE = 60  # seconds for one operation
TRIALS_OF_A_SERVER = 300  # take about 1 GB of its memory
SKIPPED = 77


class Worker:
    """The process that carries operations out: tests/s3/s3_worker_test.cpp."""

    def __init__(self, binary, proxy):
        self.process = subprocess.Popen([binary, "-ns", "-tc=a worker of the fault matrix"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, bufsize=0, env={**os.environ, "CAIRN_TEST_S3_PROXY": proxy.url})
        self.received = b""
        while (line := self.answer()) != "ready":
            if line in ("died", "hung"):
                raise RuntimeError("the worker does not start")

    def ask(self, operation, run):
        """Returns the answer; "hung" if there is none in time, and "died" without a process. The process is gone then."""
        self.process.stdin.write(f"{operation} {run}\n".encode())
        return self.answer()

    def answer(self):
        while b"\n" not in self.received:
            if not select.select([self.process.stdout], [], [], DEADLINE)[0]:
                self.end()
                return "hung"
            if not (more := os.read(self.process.stdout.fileno(), 65536)):
                self.end()
                return "died"
            self.received += more
        line, self.received = self.received.split(b"\n", 1)
        return line.decode().strip()

    def end(self):
        self.process.kill()
        self.process.wait()


def cells(seed):
    """All cells: kind, operation, rate, kinds of requests (none: all)."""
    chosen = []
    for kind, operation, rate in itertools.product(KINDS, OPERATIONS, RATES):
        requests = REQUESTS[operation]
        chosen += [(kind, operation, rate, ()), (kind, operation, rate, (requests[len(chosen) // 2 % len(requests)],))]
    random.Random(seed).shuffle(chosen)
    return chosen


def trial(worker, proxy, cell, run, seed):
    """Returns how the trial ended: "", or what is "lost", "wrong" or "hung"."""
    kind, operation, rate, requests = cell
    steps = []
    for step in ("prepare", "list", "follow"):  # the proxy keeps a list that is stale then
        steps.append(worker.ask(step, run))
        if not steps[-1].startswith("done"):
            break
    if steps[0] != "done 1" or steps[-1] != "done 2":
        raise RuntimeError(f"the run cannot be prepared: {steps}")
    proxy.plant(kind, rate, requests, seed)
    answer = worker.ask(operation, run)
    proxy.clear()
    if answer in ("hung", "died"):
        return "hung: " + answer
    if answer == "nothing" or answer.startswith("wrong") or (operation == "restore" and answer.startswith("done") and answer != "done 2"):
        return "wrong: " + answer
    committed = int(answer.split()[1]) if answer.startswith("done") else 2
    after = worker.ask("check", run)
    if after == "hung":
        return "hung: in the check"
    if not after.startswith("done") or int(after.split()[1]) < committed:
        return f"lost: {answer}, and then {after}"
    return ""


@contextlib.contextmanager
def running_server():
    """The server at AWS_ENDPOINT_URL, or a new one. Exits with 77 if none can be started."""
    if "AWS_ENDPOINT_URL" in os.environ:
        yield
        return
    directory = tempfile.mkdtemp(prefix="cairn_s3_")
    before = dict(os.environ)
    try:
        started = subprocess.run([SERVER, "start", directory], stdout=subprocess.PIPE, text=True)
        if started.returncode != 0:
            print(started.stdout, end="")
            sys.exit(SKIPPED if started.returncode == SKIPPED else 1)
        for line in pathlib.Path(directory, "environment").read_text(encoding="ascii").splitlines():
            name, value = line.removeprefix("export ").split("=", 1)
            os.environ[name] = value
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        subprocess.run([SERVER, "stop", directory], check=False)
        shutil.rmtree(directory, ignore_errors=True)


def run_cells(options, chosen, end, counts):
    """Returns how many cells were left out, because time ran out."""
    server = urllib.parse.urlsplit(os.environ["AWS_ENDPOINT_URL"])
    with FaultProxy((server.hostname, server.port)) as proxy:
        worker = Worker(options.binary, proxy)
        for tried, (number, cell) in enumerate(chosen):
            if time.monotonic() > end:
                worker.end()
                return len(chosen) - tried
            outcome = trial(worker, proxy, cell, f"matrix/{os.getpid()}/{number}", number)
            counts[cell[0]]["trials"] += 1
            if outcome:
                counts[cell[0]][outcome.split(":")[0]] += 1
                print(f"{' '.join(map(str, cell))}: {outcome}", flush=True)
            if worker.process.poll() is not None:
                worker = Worker(options.binary, proxy)
        worker.end()
    return 0


def run_matrix(options):
    counts = collections.defaultdict(collections.Counter)
    chosen = [(number, cell) for number, cell in enumerate(cells(options.seed)) if cell[0] in options.kinds and cell[1] in options.operations]
    left_out = 0
    end = time.monotonic() + options.minutes * 60
    for first in range(0, len(chosen), TRIALS_OF_A_SERVER):
        part = chosen[first:first + TRIALS_OF_A_SERVER]
        if time.monotonic() > end:
            left_out += len(part)
            continue
        with running_server():
            left_out += run_cells(options, part, end, counts)
        print(f"{first + len(part) - left_out} of {len(chosen)} trials are done", flush=True)
    print(f"{'kind':24} trials lost wrong hung")
    total = collections.Counter()
    for kind in options.kinds:
        total.update(counts[kind])
        print(f"{kind:24} {counts[kind]['trials']:6} {counts[kind]['lost']:4} {counts[kind]['wrong']:5} {counts[kind]['hung']:4}")
    print(f"{'all':24} {total['trials']:6} {total['lost']:4} {total['wrong']:5} {total['hung']:4}")
    print(f"cells without a trial: {left_out or 'none'}")
    return 1 if total["lost"] or total["wrong"] or total["hung"] or not total["trials"] else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--minutes", type=float, default=24 * 60)
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=KINDS)
    parser.add_argument("--without", type=lambda text: text.split(","), default=[])
    parser.add_argument("--operations", type=lambda text: text.split(","), default=OPERATIONS)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    options.kinds = [kind for kind in options.kinds if kind not in options.without]
    return run_matrix(options)


if __name__ == "__main__":
    sys.exit(main())
