#!/usr/bin/env python3
"""What is left of a job whose ranks are killed, stopped or disturbed in the middle of a save or a load.

usage: faults_test.py RANKS LAUNCHER [unittest arguments]

Whatever happens: the survivors are told the same, byte for byte; `committed` agrees with what is in the store; and the checkpoint
that was there before or the new one loads whole, in a launch of its own.
"""

import glob
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

RANKS, LAUNCHER = (os.path.abspath(path) for path in sys.argv[1:3])
PATIENCE = 120  # seconds of one launch; only a hang meets it
SIGKILLED = 128 + 9
WORLD = 4
# Under sanitizers a launch costs much: only some of the cases.
SLOW = os.environ.get("CAIRN_TEST_SLOW") == "1"
# For what ends when a rank has been silent; short, but longer than a machine that is busy with the test itself may be.
IMPATIENT = ["--env", "CAIRN_TEST_SILENCE_MS=%d" % (2000 if SLOW else 500)]
# Injected where a program is to have an injector, and nothing is to happen yet.
NEVER = "kill@hook:begin,nth=999999"


class Case:
    """A fault at one point of a save or load, on one rank."""

    def __init__(self, action, point, rank, nth, coordinator=0, delivered=False):
        self.rank, self.coordinator, self.delivered = rank, coordinator, delivered
        self.rule = "%s@%s,rank=%d,nth=%d" % (action, point, rank, nth)

    def __str__(self):
        return "%s, coordinator %d" % (self.rule, self.coordinator)


# The points of a call that every rank passes, with how often it has passed them before, and whether its part is done by then. Of a
# save, the second one: rank, coordinator and store know their way. Of a load, the second one after a save.
SAVE_POINTS = [("receive:Begin", 1, False), ("hook:create_local_plan", 1, False), ("send:SameSavePlan", 0, False),
               ("receive:GlobalSavePlan", 1, False), ("hook:write_data", 1, False), ("store:sync", 1, False),
               ("send:Written", 1, False), ("receive:Outcome", 1, True)]
LOAD_POINTS = [("receive:Begin", 2, False), ("hook:read_metadata", 1, False), ("send:LocalLoadPlan", 1, False),
               ("receive:GlobalLoadPlan", 1, False), ("hook:read_data", 1, False), ("send:ReadDone", 1, False),
               ("receive:Outcome", 2, True)]
# Those that only the coordinator passes: planning, publishing, and telling the outcome, to each rank: with how many have heard it.
SAVE_COORDINATOR_POINTS = [("hook:create_global_plan", 1, 0), ("hook:finish", 1, 0), ("store:publish", 1, 0),
                           ("send:Outcome", WORLD, 0), ("send:Outcome", WORLD, 2)]
LOAD_COORDINATOR_POINTS = [("hook:create_global_plan", 2, 0), ("send:Outcome", 2 * WORLD, 0), ("send:Outcome", 2 * WORLD, 2)]


def of_other_ranks(action, points, before=True, coordinator=0):
    """Every point on every rank but the coordinator's. `before`: count the calls that came first."""
    return [Case(action, point, rank, passed * before + 1, coordinator, delivered)
            for point, passed, delivered in points for rank in range(WORLD) if rank != coordinator]


def of_the_coordinator(action, points, own_points, before=True, coordinator=0):
    cases = [Case(action, point, coordinator, passed * before + 1, coordinator) for point, passed, _ in points]
    return cases + [Case(action, point, coordinator, passed * before + more + 1, coordinator) for point, passed, more in own_points]


class FaultTest(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp(prefix="cairn-faults-")
        self.addCleanup(shutil.rmtree, self.root, ignore_errors=True)

    def directory(self, name):
        path = os.path.join(self.root, name)
        os.makedirs(path, exist_ok=True)
        return path

    @staticmethod
    def command(arguments, ranks=WORLD, options=()):
        return [LAUNCHER, "-n", str(ranks), "--timeout", str(PATIENCE), "--keep-going", *options, "--", RANKS, *arguments]

    def launch(self, *arguments, ranks=WORLD, options=()):
        return subprocess.run(self.command(arguments, ranks, options), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def start(self, *arguments):
        process = subprocess.Popen(self.command(arguments), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(self.end, process)
        return process

    @staticmethod
    def end(process):
        if process.poll() is None:
            process.kill()
        process.communicate()

    def await_files(self, directory, names, *processes):
        missing = names
        while missing:
            missing = [name for name in missing if not os.path.exists(os.path.join(directory, name))]
            for process in processes:
                if missing and process.poll() is not None:
                    self.fail("a launch ended before %s:\n%s" % (missing, process.communicate()[0]))
            os.sched_yield()

    def reports(self, directory, name, ranks, output=""):
        """What each of these ranks was told."""
        texts = {}
        for rank in ranks:
            path = os.path.join(directory, "%s.%d" % (name, rank))
            self.assertTrue(os.path.exists(path), "rank %d wrote no %s\n%s" % (rank, name, output))
            with open(path) as file:
                texts[rank] = file.read()
        return texts

    def judge(self, case, told, is_save, output=""):
        """Checks what the survivors were told; returns the generations that may be in the store, counted from the attempt's own (1)
        and the one before it (0)."""
        told = sorted(set(told.values()))
        self.assertEqual(len(told), 1, "the survivors were told different things:\n%s\n%s" % ("\n".join(told), output))
        lines = told[0].splitlines()
        if lines[0] == "ok":
            if case.rank != case.coordinator:
                self.assertTrue(case.delivered, "it cannot have succeeded: %s\n%s" % (told[0], output))
            return {1}
        self.assertFalse(case.delivered and case.rank != case.coordinator, "its part was done:\n%s\n%s" % (told[0], output))
        failed = [int(match.group(1)) for match in map(re.compile(r"rank (\d+) ").match, lines) if match]
        self.assertEqual(failed, [case.rank], "the map names others than the one that failed:\n%s\n%s" % (told[0], output))
        self.assertRegex(told[0], r"rank %d %d (lost|silent) " % (case.rank, case.rank))
        committed = lines[1].split()[1]
        if not is_save or case.rank != case.coordinator:
            self.assertEqual(committed, "no", told[0])
        return {"no": {0}, "yes": {1}, "unknown": {0, 1}}[committed]

    def loaded(self, directories, ranks=2):
        """The generation that a fresh launch finds in each."""
        result = self.launch("check", *directories, ranks=ranks, options=["--no-prefix"])
        self.assertEqual(result.returncode, 0, result.stdout)
        return {path: int(generation) for path, generation in re.findall(r"^(/\S+) (\d+)$", result.stdout, re.MULTILINE)}

    @staticmethod
    def fewer(cases, every):
        return cases[::every] if SLOW else cases

    # -- gone before the first save ------------------------------------------------------------------------------------------------

    def leave_early(self, start):
        # A rank that nobody has spoken to; the coordinator, whom nobody has spoken to but to make the world; rank 0, which keeps the store.
        for coordinator, victim, how in [(0, 2, "killed"), (0, 3, "0"), (3, 1, "1"), (2, 2, "killed"), (1, 0, "killed")]:
            with self.subTest("coordinator %d, rank %d: %s" % (coordinator, victim, how)):
                directory = self.directory("%d_%d_%s" % (coordinator, victim, how))
                output = start("leave", directory, str(coordinator), str(victim), how)
                told = self.reports(directory, "report", [rank for rank in range(WORLD) if rank != victim], output)
                self.assertEqual(len(set(told.values())), 1, told)
                self.assertRegex(told[1 if victim == 0 else 0], r"^failed\ncommitted no\n.*\nrank %d %d lost join " % (victim, victim))

    def without_launcher(self, *arguments):
        """Runs the ranks as a scheduler that only sets the variables would; returns what they wrote."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        ranks = []
        for rank in range(WORLD):
            place = {"RANK": str(rank), "WORLD_SIZE": str(WORLD), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            ranks.append(subprocess.Popen([RANKS, *arguments], env={**os.environ, **place}, stdout=subprocess.PIPE,
                                          stderr=subprocess.STDOUT, text=True))
            self.addCleanup(self.end, ranks[-1])
        return "".join(rank.communicate(timeout=PATIENCE)[0] for rank in ranks)

    # -- killed: one launch each, as whoever dies does not come back ------------------------------------------------------------

    def kill(self, operation, cases):
        allowed = {}
        for number, case in enumerate(cases):
            with self.subTest(str(case)):
                directory = self.directory(str(number))
                patience = IMPATIENT if case.rank == case.coordinator else []
                result = self.launch("attempt", directory, operation, str(case.coordinator), str(case.rank),
                                     options=["--inject", case.rule, *patience])
                self.assertEqual(result.returncode, SIGKILLED, result.stdout)
                self.assertRegex(result.stdout, r"rank %d ended by SIGKILL" % case.rank)
                self.assertRegex(result.stdout, r"ranks %s exited with 0" % ", ".join(str(r) for r in range(WORLD) if r != case.rank))
                told = self.reports(directory, "report", [rank for rank in range(WORLD) if rank != case.rank], result.stdout)
                generations = self.judge(case, told, operation == "save", result.stdout)
                allowed[directory] = {1 + after for after in generations} if operation == "save" else {1}
        self.check_stores(allowed)

    def check_stores(self, allowed):
        found = self.loaded(sorted(allowed))
        for directory, generations in allowed.items():
            self.assertIn(found[directory], generations, "the store does not agree with what the ranks were told")

    # -- frozen: many in one launch, as whoever is let go on takes part again --------------------------------------------------

    def freeze(self, operation, cases):
        directory = self.directory("frozen")
        result = self.launch("freeze", directory, operation, str(cases[0].coordinator), *(case.rule for case in cases),
                             options=["--inject", NEVER, *IMPATIENT])
        self.assertEqual(result.returncode, 0, result.stdout)
        for number, case in enumerate(cases):
            with self.subTest(str(case)):
                told = self.reports(directory, "case_%d" % number, range(WORLD), result.stdout)
                own = told.pop(case.rank)
                self.judge(case, told, operation == "save", result.stdout)
                # A coordinator may have told itself how it ended before it stopped.
                if not case.delivered and case.rank != case.coordinator:
                    self.assertTrue(own.startswith("failed\n"), own)
                if own.startswith("failed\n"):
                    self.assertEqual(own, next(iter(told.values())), "the rank that stood still was told something else")
        # The save that followed the last case.
        self.assertEqual(self.loaded([directory]), {directory: 1 + 2 * len(cases)})


class Allowed(FaultTest):
    def test_a_program_that_does_not_allow_injection_says_so_once_and_meets_nothing(self):
        directory = self.directory("heedless")
        result = self.launch("heedless", directory, ranks=1, options=["--inject", "kill@hook:begin", "--inject", "no rule at all"])
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertEqual(result.stdout.count("CAIRN_INJECT is set, but this program does not call cairn::allow_injection()"), 1,
                         result.stdout)
        self.assertEqual(self.loaded([directory], ranks=1), {directory: 2})

    def test_what_is_no_rule_ends_a_program_before_it_begins(self):
        result = self.launch("check", ranks=2, options=["--inject", "kill@hook:begin", "--inject", "kill@hook:beginn"])
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertIn("CAIRN_INJECT", result.stdout)
        self.assertIn('"kill@hook:beginn" has "beginn" instead of one of reset, begin, ', result.stdout)

    def test_what_is_injected_is_announced(self):
        result = self.launch("attempt", self.directory("announced"), "save", "0", "-1", ranks=2,
                             options=["--inject", "delay=1ms@hook:finish,nth=2"])
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertEqual(result.stdout.count("[rank 0] cairn: injected into rank 0: delay=1ms@hook:finish,nth=2\n"), 1, result.stdout)


class GoneBeforeSaving(FaultTest):
    """Nobody waits for a rank that has ended, not even before ranks have talked."""

    def test_under_the_launcher(self):
        self.leave_early(lambda *arguments: self.launch(*arguments).stdout)

    def test_without_a_launcher(self):
        self.leave_early(self.without_launcher)


class KilledWhileSaving(FaultTest):
    def test_a_rank_is_killed(self):
        self.kill("save", self.fewer(of_other_ranks("kill", SAVE_POINTS), 5))


class KilledWhileLoading(FaultTest):
    def test_a_rank_is_killed(self):
        self.kill("load", self.fewer(of_other_ranks("kill", LOAD_POINTS), 5))


class KilledWhileCopying(FaultTest):
    """A process dies while it copies a checkpoint from the near to the far tier. Each operation of a save passes the store of both tiers
    and the near one; the copy passes the far one."""

    def copy(self, rule, rank):
        directory = self.directory("%s_%d" % (re.sub(r"\W", "_", rule), rank))
        result = self.launch("copy", directory, options=["--inject", "kill@%s,rank=%d" % (rule, rank)])
        self.assertEqual(result.returncode, SIGKILLED, result.stdout)
        self.assertRegex(result.stdout, r"rank %d ended by SIGKILL" % rank)
        self.reports(directory, "report", range(WORLD), result.stdout)  # the save itself has succeeded
        shutil.copytree(directory, directory + "_lost")
        return directory

    def resume(self, directory):
        result = self.launch("resume", directory, ranks=1, options=["--no-prefix"])
        self.assertEqual(result.returncode, 0, result.stdout)
        return re.findall(r"^lost (\S+)$", result.stdout, re.MULTILINE)

    def generation_of_far(self, directory):
        return self.loaded([os.path.join(directory, "far", "run")]).popitem()[1]

    def test_a_process_is_killed(self):
        # The third and sixth `sync` of a rank are those of its copies; so are the third and sixth `publish` of the coordinator.
        for rule, rank in self.fewer([("store:sync,nth=6", 0), ("store:sync,nth=6", 2), ("store:publish,nth=6", 0)], 2):
            with self.subTest("%s on rank %d" % (rule, rank)):
                directory = self.copy(rule, rank)
                self.assertEqual(self.generation_of_far(directory), 1)  # before any process continues
                self.assertEqual(self.resume(directory), [])
                shutil.rmtree(os.path.join(directory, "near"))
                self.assertEqual(self.generation_of_far(directory), 2)
                # The same, but the near tier is lost before any process continues.
                lost = directory + "_lost"
                shutil.rmtree(os.path.join(lost, "near"))
                generation = self.generation_of_far(lost)
                self.assertEqual(self.resume(lost), [] if generation == 2 else ["tiered://pair/run/checkpoint"])
                self.assertEqual(self.generation_of_far(lost), generation)


class FrozenWhileSaving(FaultTest):
    def test_a_rank_is_frozen(self):
        self.freeze("save", self.fewer(of_other_ranks("freeze", SAVE_POINTS, before=False), 4))


class FrozenWhileLoading(FaultTest):
    def test_a_rank_is_frozen(self):
        self.freeze("load", self.fewer(of_other_ranks("freeze", LOAD_POINTS, before=False), 4))


class ReadOnceFaults(FaultTest):
    """Each rank reads a part of what the others need, and they wait for it."""

    POINTS = [("receive:GlobalLoadPlan", 1, False), ("hook:read_data", 1, False), ("store:read", 6, False), ("store:read", 7, False),
              ("send:ReadDone", 1, False)]
    # The coordinator reads the metadata, too.
    COORDINATOR_POINTS = [(point, passed + (point == "store:read"), delivered) for point, passed, delivered in POINTS]

    @staticmethod
    def command(arguments, ranks=WORLD, options=()):
        return FaultTest.command(arguments, ranks, ["--env", "CAIRN_TEST_READ_ONCE=1", *options])

    def test_a_reader_is_killed(self):
        self.kill("load", self.fewer(of_other_ranks("kill", self.POINTS), 4))

    def test_the_coordinator_that_reads_is_killed(self):
        self.kill("load", self.fewer(of_the_coordinator("kill", self.COORDINATOR_POINTS, LOAD_COORDINATOR_POINTS), 4))

    def test_a_reader_is_frozen(self):
        reads = [Case("freeze", "store:read", rank, nth) for nth in (1, 2, 3) for rank in range(1, WORLD)]
        self.freeze("load", self.fewer(of_other_ranks("freeze", self.POINTS[:2], before=False) + reads, 4))

    def test_readers_are_killed_many_times(self):
        kills = int(os.environ.get("CAIRN_TEST_KILLS", "0"))
        if not kills:
            self.skipTest("CAIRN_TEST_KILLS does not say how often")
        cases = of_other_ranks("kill", sorted({*self.POINTS, *LOAD_POINTS}))
        cases += of_the_coordinator("kill", self.COORDINATOR_POINTS, LOAD_COORDINATOR_POINTS)
        self.kill("load", random.Random(kills).choices(cases, k=kills))


class CoordinatorKilledWhileSaving(FaultTest):
    def test_the_coordinator_is_killed(self):
        self.kill("save", self.fewer(of_the_coordinator("kill", SAVE_POINTS, SAVE_COORDINATOR_POINTS) +
                                     of_the_coordinator("kill", [], SAVE_COORDINATOR_POINTS, coordinator=2), 4))


class CoordinatorKilledWhileLoading(FaultTest):
    def test_the_coordinator_is_killed(self):
        self.kill("load", self.fewer(of_the_coordinator("kill", LOAD_POINTS, LOAD_COORDINATOR_POINTS), 4))


class CoordinatorFrozenWhileSaving(FaultTest):
    def test_the_coordinator_is_frozen(self):
        self.freeze("save", self.fewer(of_the_coordinator("freeze", SAVE_POINTS, SAVE_COORDINATOR_POINTS, before=False), 4))

    def test_another_rank_that_coordinates_is_frozen(self):
        self.freeze("save", self.fewer(of_the_coordinator("freeze", [], SAVE_COORDINATOR_POINTS, before=False, coordinator=2), 4))


class CoordinatorFrozenWhileLoading(FaultTest):
    def test_the_coordinator_is_frozen(self):
        self.freeze("load", self.fewer(of_the_coordinator("freeze", LOAD_POINTS, LOAD_COORDINATOR_POINTS, before=False), 4))


class Rejoined(FaultTest):
    def rejoin(self, case, options=()):
        directory = self.directory(str(case.rank))
        result = self.launch("rejoin", directory, str(case.coordinator), options=["--inject", case.rule, *options])
        self.assertEqual(result.returncode, SIGKILLED, result.stdout)
        survivors = [rank for rank in range(WORLD) if rank != case.rank]
        told = self.reports(directory, "report", range(WORLD - 1), result.stdout)
        for rank in range(WORLD - 1):
            self.assertEqual(told[rank], "survived as rank %d of %d\n" % (rank, WORLD - 1))
        self.assertRegex(result.stdout, r"ranks %s exited with 0" % ", ".join(map(str, survivors)))
        self.assertEqual(self.loaded([directory], ranks=4), {directory: 3})

    def test_the_survivors_go_on_in_a_smaller_world(self):
        self.rejoin(Case("kill", "hook:write_data", 2, 2))

    def test_the_rank_that_hosted_the_store_is_the_one_that_died(self):
        self.rejoin(Case("kill", "hook:write_data", 0, 2, coordinator=1))

    def test_the_rank_that_hosted_the_store_stands_still(self):
        self.rejoin(Case("freeze", "hook:write_data", 0, 2), IMPATIENT)


class OthersAtTheDoor(FaultTest):
    @staticmethod
    def post(directory, name):
        with open(os.path.join(directory, name), "w"):
            pass

    def test_two_jobs_save_to_one_place(self):
        """Both have written all data when both, or one after the other, are let go on to publish."""
        for number, order in enumerate([[(1, 2)], [(1,), (2,)], [(2,), (1,)]]):
            with self.subTest(order=order):
                directory = self.directory(str(number))
                jobs = {job: self.start("save", directory, str(job), "go.%d" % job) for job in (1, 2)}
                written = ["written.%d.%d" % (job, rank) for job in (1, 2) for rank in range(WORLD)]
                self.await_files(directory, written, *jobs.values())
                for turn in order:
                    for job in turn:
                        self.post(directory, "go.%d" % job)
                    for job in turn:
                        output = jobs[job].communicate(timeout=PATIENCE)[0]
                        self.assertEqual(jobs[job].returncode, 0, output)
                succeeded = []
                for job in (1, 2):
                    told = set(self.reports(directory, "report.%d" % job, range(WORLD)).values())
                    self.assertEqual(len(told), 1, told)
                    if told == {"ok\n"}:
                        succeeded.append(job)
                # Whoever publishes first ends the other's save, unless that has published too by then.
                self.assertTrue(succeeded)
                if len(order) > 1:
                    self.assertEqual(succeeded, list(order[0]))
                self.assertIn(self.loaded([directory])[directory], succeeded)
                # If both have, those of the one that was replaced stay where the other has seen it in time.
                files = len(glob.glob(os.path.join(directory, "checkpoint", "*.distcp")))
                self.assertIn(files, {WORLD, WORLD * len(succeeded)})

    @staticmethod
    def doors(pid):
        """The ports of loopback at which a process listens."""
        sockets = set()
        for link in glob.glob("/proc/%s/fd/*" % pid):
            try:
                sockets.add(os.readlink(link))
            except OSError:
                pass  # closed meanwhile
        with open("/proc/%s/net/tcp" % pid) as file:
            fields = [line.split() for line in file.readlines()[1:]]
        return [int(field[1].split(":")[1], 16) for field in fields
                if field[3] == "0A" and field[1].startswith("0100007F:") and "socket:[%s]" % field[9] in sockets]

    def test_strangers_knock_during_a_save(self):
        directory = self.directory("strangers")
        job = self.start("save", directory, "1", "go")
        self.await_files(directory, ["written.1.%d" % rank for rank in range(WORLD)], job)
        strangers, doors = [], 0
        for rank in range(WORLD):
            with open(os.path.join(directory, "pid.1.%d" % rank)) as file:
                ports = self.doors(file.read())
            doors += len(ports)
            for port in ports:
                for words in (b"", os.urandom(4096), b"\xff\xff\xff\xff" + os.urandom(64), b"GET / HTTP/1.1\r\n\r\n"):
                    stranger = socket.create_connection(("127.0.0.1", port), PATIENCE)
                    self.addCleanup(stranger.close)
                    strangers.append(stranger)
                    stranger.sendall(words)
        self.assertEqual(doors, WORLD)
        for stranger in strangers[1::4]:  # the random bytes: they are thrown out before the save goes on
            stranger.settimeout(PATIENCE)
            try:
                while stranger.recv(4096):
                    pass
            except ConnectionResetError:
                pass
        self.post(directory, "go")
        output = job.communicate(timeout=PATIENCE)[0]
        self.assertEqual(job.returncode, 0, output)
        self.assertEqual(set(self.reports(directory, "report.1", range(WORLD)).values()), {"ok\n"}, output)
        self.assertEqual(self.loaded([directory]), {directory: 1})


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
