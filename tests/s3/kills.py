#!/usr/bin/env python3
"""Kills processes that save to S3 and to tiers at random moments, and checks that the next one resumes correctly.

usage: kills.py S3_TESTS [--kills N] [--seed N]

A process restores the latest checkpoint, saves the next one and removes old ones, again and again. SIGKILL ends it at a random moment. Then
each checkpoint that is left must be sound, and the latest one not older than the last that was reported. The kinds: `s3`; `tiers`, a
directory before a bucket; and `lost`, in which the directory is removed after each kill, so that the latest one of the bucket counts. For
each kind it prints the kills, and how often a checkpoint was lost, was wrong, or a process hung. Ends with 0 if all of these are 0, with 77
where no server can be started.
"""

import argparse
import collections
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import urllib.parse

from fault_matrix import Worker, running_server
from fault_proxy import FaultProxy

OPERATIONS = {"s3": "resume_keeping_one", "tiers": "resume_tiers", "lost": "resume_tiers"}
KILLS_OF_A_RUN = 20
SECONDS_MAX = 2.0  # until a kill


class Kills:
    def __init__(self, options, proxy):
        self.binary, self.proxy = options.binary, proxy
        self.chance = random.Random(options.seed)
        self.counts = collections.defaultdict(collections.Counter)
        self.checker = Worker(self.binary, proxy)

    def note(self, kind, what, text):
        self.counts[kind][what] += 1
        print(f"{what}: {text}", flush=True)

    def step_of(self, answer):
        return int(answer.split()[1]) if answer.startswith("done") else 0 if answer == "nothing" else None

    def save_until_killed(self, kind, run):
        """Returns the answers."""
        child = self.saver.ask(f"again {OPERATIONS[kind]}", run)
        killer = threading.Timer(self.chance.uniform(0, SECONDS_MAX), os.kill, [int(child.split()[1]), signal.SIGKILL])
        killer.start()
        answers = []
        while not answers or answers[-1] not in ("ended", "hung", "died"):
            answers.append(self.saver.answer())
        killer.cancel()
        return answers

    def latest_in_bucket(self, kind, run, where):
        place = run if kind == "s3" else run + "/run"
        answer = self.checker.ask("check", place)
        if self.checker.process.poll() is not None:
            self.checker = Worker(self.binary, self.proxy)
        step = self.step_of(answer)
        if step is None:
            self.note(kind, "hung" if answer == "hung" else "lost", f"{where}: {answer}")
        return step or 0

    def run(self, kind, number, kills, near):
        run = f"kills/{os.getpid()}/{number}"
        os.environ["CAIRN_TEST_NEAR"] = near
        self.saver = Worker(self.binary, self.proxy)
        if kind == "s3":
            self.checker.ask("prepare", run)
        expected = 1 if kind == "s3" else 0
        for kill in range(kills):
            where = f"{kind} run {number} kill {kill}"
            answers = self.save_until_killed(kind, run)
            bad = [answer for answer in answers if not answer.startswith("done") and answer != "ended"]
            if bad:
                self.note(kind, "hung" if "hung" in bad else "wrong", f"{where}: {bad}")
                self.saver = Worker(self.binary, self.proxy)
            steps = [self.step_of(answer) for answer in answers if answer.startswith("done")]
            # The first step follows the latest checkpoint, and the steps are consecutive.
            if steps and (steps[0] <= expected or steps != list(range(steps[0], steps[0] + len(steps)))):
                self.note(kind, "lost", f"{where}: {steps} after {expected}")
            copied = self.latest_in_bucket(kind, run, where)
            reported = max([expected, *steps])
            # Each reported step is in the bucket. In tiers, a step is reported only after it has been copied.
            if copied < reported:
                self.note(kind, "lost", f"{where}: the bucket has step {copied}, and {reported} was reported")
            expected = max(copied, reported)
            if kind == "lost":
                shutil.rmtree(near, ignore_errors=True)
            self.counts[kind]["kills"] += 1
        self.saver.end()
        print(f"{kind} run {number}: {kills} kills, the latest step is {expected}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=list(OPERATIONS))
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with running_server():
        server = urllib.parse.urlsplit(os.environ["AWS_ENDPOINT_URL"])
        with FaultProxy((server.hostname, server.port)) as proxy:
            kills = Kills(options, proxy)
            for number, first in enumerate(range(0, options.kills, KILLS_OF_A_RUN)):
                kind = options.kinds[number % len(options.kinds)]
                with tempfile.TemporaryDirectory() as near:
                    kills.run(kind, number, min(KILLS_OF_A_RUN, options.kills - first), near + "/near")
            kills.checker.end()
    print("kind   kills lost wrong hung")
    bad = 0
    for kind in options.kinds:
        count = kills.counts[kind]
        bad += count["lost"] + count["wrong"] + count["hung"]
        print(f"{kind:6} {count['kills']:5} {count['lost']:4} {count['wrong']:5} {count['hung']:4}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
