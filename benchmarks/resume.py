#!/usr/bin/env python3
"""From the death of a rank to the first step after resuming from the last checkpoint, split; beside a start that resumes nothing.

usage: resume.py BIN_DIRECTORY [--quick]

Four ranks of char_lm under cairn-launch, which ends the job when one is killed; the same command is given again at once. One JSON object
a line: {name, value, unit, limit, ratio}; medians. The limit is the same stretch of a job that starts anew: its processes, its
world and its first step.
"""

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

RANKS = 4
VICTIM = 2
KILL_AT = "step 12 "  # behind the checkpoint of step 10


def children(pid):
    found = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
            for child in file.read().split():
                found += [int(child)] + children(int(child))
    return found


def pid_of_rank(launcher, rank):
    for pid in children(launcher):
        with open(f"/proc/{pid}/environ", "rb") as file:
            if b"RANK=%d" % rank in file.read().split(b"\0"):
                return pid
    raise RuntimeError(f"there is no process of rank {rank}")


class Job:
    def __init__(self, binaries, directory):
        self.started = time.monotonic()
        command = [os.path.join(binaries, "cairn-launch"), "-n", str(RANKS), "--", os.path.join(binaries, "char_lm"), "--steps", "1000",
                   "--save-every", "10", "--dir", directory, "--resume"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def await_line(self, part):
        """When a line with `part` in it came."""
        said = []
        for line in self.process.stdout:
            if part in line:
                return time.monotonic()
            said.append(line)
        raise RuntimeError(f"the job ended before it said '{part}':\n{''.join(said)}")

    def kill_rank(self):
        os.kill(pid_of_rank(self.process.pid, VICTIM), signal.SIGKILL)
        return time.monotonic()

    def await_end(self):
        self.process.stdout.read()
        self.process.wait()
        return time.monotonic()

    def end(self):
        self.process.send_signal(signal.SIGINT)
        self.await_end()


def measure(binaries):
    directory = tempfile.mkdtemp(prefix="cairn-resume-")
    try:
        first = Job(binaries, directory)
        met = first.await_line("starting anew")
        stepped = first.await_line("step 1 ")
        first.await_line(KILL_AT)
        killed = first.kill_rank()
        ended = first.await_end()
        second = Job(binaries, directory)
        restored = second.await_line("resumed from")
        resumed = second.await_line("step ")
        second.end()
    finally:
        shutil.rmtree(directory)
    return {"kill_to_launcher_ended": (ended - killed, None),
            "relaunch_to_restored": (restored - second.started, met - first.started),
            "restored_to_first_step": (resumed - restored, stepped - met),
            "kill_to_first_step": (resumed - killed, stepped - first.started)}


def main():
    binaries = sys.argv[1]
    runs = [measure(binaries) for _ in range(1 if "--quick" in sys.argv[2:] else 5)]
    for name in runs[0]:
        value = statistics.median(run[name][0] for run in runs) * 1000
        row = {"name": name, "value": round(value, 1), "unit": "ms"}
        if runs[0][name][1] is not None:
            limit = statistics.median(run[name][1] for run in runs) * 1000
            row.update(limit=round(limit, 1), ratio=round(value / limit, 3))
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
