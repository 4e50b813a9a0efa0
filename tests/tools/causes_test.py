#!/usr/bin/env python3
"""Twenty-one causes of failed and slow saves, each planted in a job of real ranks: `cairn trace` names rank, phase, operation and cause.

usage: causes_test.py CAIRN RANKS LAUNCHER [unittest arguments]      RANKS: of tests/faults

The slow connection is skipped on machines that cannot make network namespaces.
CAIRN_CAUSES_RANKS is the number of ranks of each job, 4 by default. Each test prints the lines that it has judged.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../hosts"))
import network

CAIRN, RANKS, LAUNCHER = (os.path.abspath(path) for path in sys.argv[1:4])
WORLD = int(os.environ.get("CAIRN_CAUSES_RANKS", "4"))
PATIENCE = 240  # seconds of one launch; only a hang meets it
VICTIM = WORLD // 2 + 1
LINES = 10
# The injected delay must be much longer than anything else in a save of so many processes.
DELAY_MS = 1200 if WORLD <= 8 else 8000
DELAY = "%dms" % DELAY_MS
SILENCE = 1000 if WORLD <= 8 else 8000
LINK_DELAY = 0.2  # seconds each way
NEVER = "kill@hook:begin,nth=999999"  # for a program that replaces the rules, and so needs an injector


class Cause:
    """`mode`: of the ranks' program, with its arguments. `rules`: what is injected. `rank`: the one that the lines must name. `says`: what
    they must say besides, and `never`: what they must not say. `is_far`: whether that rank is on another host."""

    def __init__(self, mode, rules, says, rank=VICTIM, env=(), never=(), is_far=False):
        self.mode, self.rules, self.says, self.rank, self.env, self.never = mode, rules, says, rank, env, never
        self.is_far = is_far


def in_save(rule, says, rank=VICTIM, victim=None, never=()):
    """The second save of a job, which knows its way. `victim`: the rank that the fault ends."""
    return Cause(["attempt", "save", "0", "-1" if victim is None else str(victim)], [rule % rank], says, rank, never=never)


FAILURES = {
    "killed_in_a_hook": in_save(
        "kill@hook:write_data,rank=%d,nth=2",
        [r"failed +rank {rank} ([(]process [^)]*[)] )?lost in write", r"its process was killed by SIGKILL", r"write_data \(its storage\) began .* and had not ended"],
        victim=VICTIM),
    "killed_before_a_message": in_save(
        "kill@send:Written,rank=%d,nth=2",
        [r"failed +rank {rank} ([(]process [^)]*[)] )?lost in write", r"its process was killed by SIGKILL",
         r"reached the state `reported`, and had not sent Written"], victim=VICTIM),
    "exited_before_the_save": Cause(
        ["leave", "0", str(VICTIM), "3"], [],
        [r"failed +rank {rank} ([(]process [^)]*[)] )?lost in join", r"its process exited with (code )?3"]),
    "frozen": Cause(
        ["freeze", "save", "0", "freeze@hook:write_data,rank=%d" % VICTIM], [NEVER],
        [r"failed +rank {rank} ([(]process [^)]*[)] )?silent in write", r"its process stood still from",
         r"write_data \(its storage\) began .*had not ended"],
        env=["CAIRN_TEST_SILENCE_MS=%d" % SILENCE]),
    "connection_cut": in_save(
        "drop-link=0@send:Written,rank=%d,nth=2",
        [r"failed +rank {rank} ([(]process [^)]*[)] )?lost in write: .*the connection to rank {rank} at .* was closed", r"it was cut off: it went on.*its last event before that was at"]),
    "exception_in_an_actor": in_save(
        "throw@receive:GlobalSavePlan,rank=%d,nth=2",
        [r"failed +rank {rank} ([(]process [^)]*[)] )?lost in write", r"its supervisor ended while it handled GlobalSavePlan from rank 0: .*InjectedFault"],
        never=["no hook was running", "did nothing about it"]),
    "exception_in_a_hook": in_save(
        "throw@hook:begin,rank=%d,nth=2",
        [r"failed +rank {rank} ([(]process [^)]*[)] )?raised in join \(begin", r"InjectedFault"]),
    "exception_in_planning": in_save(
        "throw@hook:create_global_plan,rank=%d,nth=2",
        [r"failed +rank {rank} ([(]process [^)]*[)] )?raised in global_plan \(create_global_plan", r"InjectedFault"], rank=0),
    "disk_full": in_save(
        "disk-full@store:write_at,rank=%d,nth=2",
        [r"failed +rank {rank} ([(]process [^)]*[)] )?raised in write \(write_data, .*\[no_space\]",
         r"where +rank {rank}: write_at of its store failed after .*: __{rank}_.*\.distcp", r"disk is full"]),
    "flush_failed": in_save(
        "throw@store:sync,rank=%d,nth=2",
        [r"failed +rank {rank} ([(]process [^)]*[)] )?raised in write \(write_data, after .*\): ",
         r"where +rank {rank}: sync of its store failed after .*: __{rank}_.*\.distcp", r"InjectedFault"]),
    "publication_failed": in_save(
        "throw@store:publish,rank=%d,nth=2",
        [r"failed +rank {rank} ([(]process [^)]*[)] )?raised in finish \(finish, after .*\): ",
         r"where +rank {rank}: publish of its store failed after .*: checkpoint", r"InjectedFault"], rank=0),
    "damaged_checkpoint": Cause(
        # The first read is that of the record. A damaged block is read twice.
        ["attempt", "load", "0", "-1"], [";".join("read-flip@store:read,rank=%d,nth=%d" % (VICTIM, nth) for nth in range(2, 20))],
        [r"failed +rank {rank} ([(]process [^)]*[)] )?raised in read \(read_data, .*\[corrupt\]", r" of …/checkpoint/__\d+_\S*\.distcp: ", r"is damaged"]),
}

SLOW = {
    "slow_hook": in_save(
        "delay=" + DELAY + "@hook:write_data,rank=%d,nth=2",
        [r"waited for rank {rank} in write", r"longest +rank {rank} write_data, for", "write: slowest rank {rank} "],
        never=["of its store"]),
    "slow_planning": in_save(
        "delay=" + DELAY + "@hook:create_global_plan,rank=%d,nth=2",
        [r"waited +rank {rank} \(coordinates\) was busy with its own part of global_plan",
         r"longest +rank {rank} create_global_plan, for"], rank=0),
    "message_sent_late": in_save(
        "delay=" + DELAY + "@send:SameSavePlan,rank=%d",
        [r"waited for rank {rank} in local_plan", r"longest +rank {rank} held up before it sent SameSavePlan to rank 0",
         "local_plan: slowest rank {rank} "]),
    "slow_connection": Cause(
        ["attempt", "save", "0", "-1"], [],
        [r"waited for rank {rank} in", r"longest +\d+ messages between rank 0 and rank {rank} on their way, together for .*: the connection was slow"],
        env=["CAIRN_TEST_CONNECT_MS=60000"], never=["after the first one"], is_far=True),
    "slow_store": in_save(
        "delay=" + DELAY + "@store:write_at,rank=%d,nth=2",
        [r"waited for rank {rank} in write", r"longest +rank {rank} write_data, for .*; write_at of its store took .*\.distcp, .*B/s"]),
    "slow_flush": in_save(
        "delay=" + DELAY + "@store:sync,rank=%d,nth=2",
        [r"waited for rank {rank} in write", r"longest +rank {rank} write_data, for .*; sync of its store took .*\.distcp, .*B/s"]),
    "slow_device_copy": Cause(
        ["late", "copy", str(VICTIM), str(DELAY_MS)], [],
        [r"waited for rank {rank} in local_plan", r"longest +rank {rank} begin, for .*; the copy of its state took [0-9.]+ m?s"]),
    "rank_called_late": Cause(
        ["late", "call", str(VICTIM), str(DELAY_MS)], [],
        [r"waited for rank {rank} in join", r"longest +rank {rank} had not called yet, for"]),
    "old_checkpoints_removed": Cause(
        ["manage"], ["delay=" + DELAY + "@store:remove,rank=0,nth=1"],
        [r"longest +rank {rank} set_up_storage_writer, for .*; the removal of old checkpoints took .*: step_1"], rank=0),
}


# Ranks as subjects, and as what others waited for. One of the line `ranks` is blamed if it took a multiple of the median.
BLAME = re.compile(r"(?m)^(?:failed|where|longest|notice|died) +ranks? ([\d, -]+)|\bwaited for ranks? ([\d, -]+)")
SLOWEST = re.compile(r"slowest rank (\d+) \(([^)]+)\), median ([^|\n]+)")


def seconds(text):
    value, unit = text.split()
    return float(value) * {"s": 1, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}[unit]


def blamed(text):
    """The ranks that lines blame for something."""
    named = [rank for found in BLAME.findall(text) for ranks in found for first, last in re.findall(r"(\d+)(?:-(\d+))?", ranks)
             for rank in range(int(first), int(last or first) + 1)]
    slow = [int(rank) for rank, time, median in SLOWEST.findall(text) if seconds(time) > max(DELAY_MS / 2000, 2 * seconds(median))]
    return set(named + slow)


class CausesTest(unittest.TestCase):
    def test_ranks_are_blamed_in_the_singular_and_in_the_plural(self):
        self.assertEqual(blamed("waited     rank 0 (coordinates) waited for ranks 2, 3 in write since 09:52:50.543 UTC, for 9.00 s"), {2, 3})
        self.assertEqual(blamed("notice     ranks 4-6, 8 called late\nfailed     rank 1 raised in write"), {1, 4, 5, 6, 8})
        self.assertEqual(blamed("ranks      join: slowest rank 7 (%.1f s), median 1.1 ms" % (DELAY_MS / 1000)), {7})
        self.assertEqual(blamed("ranks      join: slowest rank 7 (4.0 ms), median 1.1 ms"), set())

    def check(self, name, cause):
        root = tempfile.mkdtemp(prefix="cairn-causes-")
        self.addCleanup(shutil.rmtree, root, ignore_errors=True)
        run, traces = os.path.join(root, "run"), os.path.join(root, "traces")
        os.mkdir(run)
        command = [LAUNCHER, "-n", str(WORLD), "--timeout", str(PATIENCE), "--keep-going", "--trace", traces]
        for rule in cause.rules:
            command += ["--inject", rule]
        for variable in cause.env:
            command += ["--env", variable]
        ranks = [RANKS, cause.mode[0], run, *cause.mode[1:]]
        if cause.is_far:
            why = network.missing()
            if why:
                self.skipTest(why)
            hosts = network.Network(2, delay=LINK_DELAY)
            self.addCleanup(hosts.close)
            here, there = hosts.hosts
            to_there = f'[ "$RANK" != {cause.rank} ] || set -- nsenter --net=/proc/{os.getpid()}/fd/{there.namespace} "$@"; exec "$@"'
            command += ["--", "sh", "-c", to_there, "sh", "env", "MASTER_ADDR=" + here.address, *ranks]
            command = here.command(command, "/etc/hosts")
        else:
            command += ["--", *ranks]
        launched = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        told = subprocess.run([CAIRN, "trace", traces], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        lines = told.stdout.splitlines()[:LINES]
        text = "\n".join(lines)
        print("\n%s, %d ranks:\n%s" % (name, WORLD, text), flush=True)
        self.assertEqual(told.returncode, 0, text + launched.stdout)
        for says in cause.says:
            self.assertRegex(text, says.replace("{rank}", str(cause.rank)), launched.stdout)
        for never in cause.never:
            self.assertNotIn(never, text)
        # No line blames another rank.
        self.assertEqual(blamed(text), {cause.rank}, text)


def define(kind, causes):
    for name, cause in causes.items():
        setattr(CausesTest, "test_%s_%s" % (kind, name), lambda self, name=name, cause=cause: self.check(name, cause))


define("failure", FAILURES)
define("slow_save", SLOW)

if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
