#!/usr/bin/env python3
"""`cairn trace` on what real ranks have recorded: of good saves, and of saves in which something was planted.

usage: trace_test.py CAIRN RANKS LAUNCHER [unittest arguments]      RANKS: of tests/faults
"""

import contextlib
import fcntl
import glob
import json
import os
import pty
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import unittest

from terminal import on_terminal

CAIRN, RANKS, LAUNCHER = (os.path.abspath(path) for path in sys.argv[1:4])
FINE, FOUND_BAD, WRONG_USE = 0, 1, 2
PATIENCE = 120  # seconds of one launch; only a hang meets it
WORLD = 4
SLOW = os.environ.get("CAIRN_TEST_SLOW") == "1"


def cairn(*arguments, **options):
    return subprocess.run([CAIRN, "trace", *map(str, arguments)], stdout=options.pop("stdout", subprocess.PIPE),
                          stderr=subprocess.PIPE, text=True, **options)


def memory_of(*arguments):
    """The exit code of `cairn trace`, and the most memory that it has held, in bytes."""
    child = subprocess.Popen([CAIRN, "trace", *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    return child.returncode, usage.ru_maxrss * 1024


class Recording:
    """What a launch has left: `traces` of every rank from beginning to end, and `run` with the report of a failure."""

    def __init__(self, *arguments, options=(), ranks=WORLD, copied=False, log="warning", keep_going=True):
        self.root = tempfile.mkdtemp(prefix="cairn-trace-")
        self.program = shutil.copy(RANKS, os.path.join(self.root, "ranks")) if copied else RANKS
        self.run, self.traces = os.path.join(self.root, "run"), os.path.join(self.root, "traces")
        os.mkdir(self.run)
        command = [LAUNCHER, "-n", str(ranks), "--timeout", str(PATIENCE), *["--keep-going"] * keep_going,
                   "--trace", self.traces, *options, "--", self.program,
                   arguments[0], self.run, *arguments[1:]]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "CAIRN_LOG": log})
        self.output, self.code = done.stdout, done.returncode

    def remove(self):
        shutil.rmtree(self.root, ignore_errors=True)


class TraceTest(unittest.TestCase):
    # Of a class: what is launched once for all its tests.
    launch = None

    @classmethod
    def setUpClass(cls):
        if cls.launch is None:
            raise unittest.SkipTest("for those derived from it")
        cls.recording = cls.launch()

    @classmethod
    def tearDownClass(cls):
        cls.recording.remove()

    def copied(self):
        """The recording once more, to be spoilt: where, and its files by rank."""
        copy = os.path.join(self.recording.root, "copy")
        shutil.copytree(self.recording.traces, copy)
        self.addCleanup(shutil.rmtree, copy)
        return copy, sorted(glob.glob(os.path.join(copy, "*.trace")))

    def with_traces_of(self, other):
        """Returns a directory with the traces of both recordings. Removes `other` after the test."""
        self.addCleanup(other.remove)
        both = os.path.join(other.root, "both")
        for traces in (self.recording.traces, other.traces):
            shutil.copytree(traces, both, dirs_exist_ok=True)
        return both

    def tell(self, *arguments, code=FINE):
        done = cairn(*arguments)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr + self.recording.output)
        return done.stdout if code == FINE else done.stderr

    def summary(self, path=None):
        text = self.tell(path or self.recording.traces)
        self.assertLessEqual(len(text.splitlines()), 10, text)
        return text

    def told(self, *arguments):
        return json.loads(self.tell(*arguments, "--json"))

    def check_says(self, text, *parts):
        for part in parts:
            self.assertRegex(text, part)

    def exported(self, recording, *options):
        path = os.path.join(recording.root, "exported.json")
        self.assertEqual(self.tell("export", recording.traces, "--to", "perfetto", "-o", path, *options), "")
        def refuse(number):
            self.fail("%s is no JSON" % number)
        with open(path) as file:
            told = json.load(file, parse_constant=refuse)
        self.assertEqual(sorted(told), ["baseTimeNanoseconds", "displayTimeUnit", "otherData", "traceEvents"])
        self.assertIn(told["displayTimeUnit"], ("ms", "ns"))
        return told

    def check_trace_events(self, events):
        """The rules of the Trace Event Format: the fields of each phase and their types; each track is named once; slices of a track
        nest; arrows have two ends of one name, each on a slice."""
        fields = {"X": {"dur": (int, float), "cat": str, "args": dict}, "i": {"s": str, "cat": str, "args": dict},
                  "s": {"id": int, "cat": str}, "f": {"id": int, "cat": str, "bp": str}}
        slices, flows, named = {}, {}, {}
        for event in events:
            if event["ph"] == "M":
                of_process, value = event["name"].startswith("process_"), {"name": str, "sort_index": int}
                needed = {"pid": int, "args": dict, **({} if of_process else {"tid": int})}
                self.assertIn(event["name"], ("process_name", "process_sort_index", "thread_name", "thread_sort_index"))
                key, = event["args"]
                self.assertEqual(key, event["name"].split("_", 1)[1])
                self.assertIs(type(event["args"][key]), value[key], event)
                named.setdefault((event["pid"], event.get("tid")), []).append(event["name"])
            else:
                needed = {"pid": int, "tid": int, "ts": (int, float), **fields[event["ph"]]}
            self.assertEqual(set(event), {"ph", "name", *needed}, event)
            for field, kind in {"name": str, **needed}.items():
                self.assertIn(type(event[field]), kind if isinstance(kind, tuple) else (kind,), event)
            self.assertTrue(event["name"], event)
            self.assertGreaterEqual(min(event.get("ts", 0), event.get("dur", 0)), 0, event)
            if event["ph"] == "X":
                slices.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
            elif event["ph"] == "i":
                self.assertIn(event["s"], "gpt")
            elif event["ph"] in "sf":
                flows.setdefault((event["cat"], event["id"], event["name"]), []).append(event)
                self.assertEqual(event.get("bp", "e"), "e")
        for names in named.values():
            self.assertEqual(len(names), len(set(names)), names)
        for pid, tid in {(event["pid"], event["tid"]) for event in events if "tid" in event}:
            self.assertIn("process_name", named[pid, None])
            self.assertIn("thread_name", named[pid, tid])
        for track, of_track in slices.items():
            open_ends = []
            for begin, end in sorted(of_track, key=lambda it: (it[0], -it[1])):
                while open_ends and open_ends[-1] <= begin + 1e-3:
                    open_ends.pop()
                if open_ends:
                    self.assertLessEqual(end, open_ends[-1] + 1e-3, "slices of track %s cross" % (track,))
                open_ends.append(end)
        for name, ends in flows.items():
            self.assertEqual(sorted(event["ph"] for event in ends), ["f", "s"], name)
            sent, handled = sorted(ends, key=lambda event: event["ph"], reverse=True)
            self.assertLessEqual(sent["ts"], handled["ts"])
            for end in ends:
                begins = [begin for begin, _ in slices[(end["pid"], end["tid"])]]
                self.assertIn(end["ts"], begins)
        return slices, flows


class GoodSave(TraceTest):
    launch = staticmethod(lambda: Recording("attempt", "save", "0", "-1"))

    def test_how_it_ended_and_what_took_how_long(self):
        self.assertEqual(self.recording.code, 0, self.recording.output)
        text = self.summary()
        self.check_says(text, r"^save of '.*/run/checkpoint' succeeded in ", "waited +rank 0 \\(coordinates\\) (waited for rank|was busy with its own)",
                        "phases +join .* local_plan .* global_plan .* write .* finish ",
                        "traces +4 of 4 ranks.*; clocks agree within [0-9.]+ (us|ms)$")
        self.assertNotIn("failed", text)
        # 20x20, 10x10 floats: once, not once a rank.
        self.check_says(text, r"data +2.0 KiB")

    def test_a_process_that_died_after_the_save_is_the_first_line(self):
        copy, _ = self.copied()
        (ends,) = glob.glob(os.path.join(copy, "*.ends"))
        with open(ends) as file:
            text = file.read()
        with open(ends, "w") as file:
            file.write(re.sub(r"(?m)^(rank 2 .*) code 0$", r"\1 signal SIGSEGV", text))
        self.assertRegex(self.tell(copy), r"^died +rank 2 [(]process [0-9]+ on .*[)]: its process was killed by SIGSEGV at .* after this call ended\nsave of ")

    def test_a_process_that_died_between_saves_is_the_first_line(self):
        copy, _ = self.copied()
        (ends,) = glob.glob(os.path.join(copy, "*.ends"))
        with open(ends) as file:
            text = file.read()
        launched = int(re.search(r"(?m)^launched (\d+)", text).group(1))
        hour, minute, second = self.told(copy)["begin"].split(":")  # of the second save
        of_day = int(hour) * 3_600_000 + int(minute) * 60_000 + round(float(second) * 1000)
        ended = launched + (of_day - launched) % 86_400_000 - 1
        with open(ends, "w") as file:
            file.write(re.sub(r"(?m)^(rank 2 \d+) \d+ code 0$", r"\1 %d signal SIGSEGV" % ended, text))
        self.assertRegex(self.tell(copy), r"^died +rank 2 [(]process [0-9]+ on .*[)]: its process was killed by SIGSEGV at .* before this call began; "
                                          r"its last call was the save of '.*/run/checkpoint'\nsave of ")

    def test_json_holds_the_same(self):
        told = self.told(self.recording.traces)
        self.assertEqual((told["end"], told["committed"], told["coordinator"], told["failures"]), ("succeeded", "yes", 0, []))
        self.assertEqual([phase["name"] for phase in told["phases"]], ["join", "local_plan", "global_plan", "write", "finish"])
        self.assertTrue(all(phase["ended"] and phase["seconds"] >= 0 for phase in told["phases"]))
        self.assertEqual(told["missing_ranks"], [])
        self.assertEqual(told["unaligned_ranks"], [])
        self.assertGreaterEqual(told["clock_error_seconds"], 0)
        self.assertEqual(told["notices"], [])

    def test_both_saves_are_listed_and_each_can_be_chosen(self):
        listed = self.told("list", self.recording.traces)
        self.assertEqual([(entry["operation"], entry["attempt"], entry["end"], entry["ranks"]) for entry in listed],
                         [("save", 1, "succeeded", WORLD), ("save", 2, "succeeded", WORLD)])
        self.assertEqual(self.told(self.recording.traces)["attempt"], 2)
        self.assertEqual(self.told(self.recording.traces, "--attempt", "1")["attempt"], 1)
        self.assertEqual(self.told(self.recording.traces, "--attempt", "save:1")["attempt"], 1)
        self.assertRegex(self.tell("list", self.recording.traces), r"(?m)^save:2 .* succeeded")
        self.assertIn("cairn trace list", self.tell(self.recording.traces, "--attempt", "load:1", code=WRONG_USE))
        self.assertEqual(len(self.told("list", self.recording.traces, "--after", "2020-01-02T03:04:05")), 2)
        self.tell(self.recording.traces, "--after", "2999-01-02T03:04:05", code=FOUND_BAD)
        self.assertIn("is no time", self.tell(self.recording.traces, "--after", "noon", code=WRONG_USE))
        self.assertEqual(self.told(self.recording.traces, "--attempt", listed[0]["save_id"])["attempt"], 1)
        self.assertIn("cairn trace list", self.tell(self.recording.traces, "--attempt", "77", code=WRONG_USE))
        self.assertIn("in job none", self.tell(self.recording.traces, "--job", "none", "--attempt", "1", code=WRONG_USE))

    def test_the_parts_of_the_critical_path_are_the_whole_time(self):
        steps = self.told("critical-path", self.recording.traces)
        self.assertAlmostEqual(sum(step["percent"] for step in steps), 100, places=3)
        told = self.told(self.recording.traces)
        self.assertLessEqual(sum(step["seconds"] for step in steps), told["seconds"] + 2 * told["clock_error_seconds"] + 1e-6)
        self.assertTrue(any(step["what"] == "finish" and step["rank"] == 0 for step in steps), steps)

    def test_every_message_is_found_with_its_sender(self):
        events = self.told("messages", self.recording.traces)
        by_id = {(event["rank"], event["id"]): event for event in events}
        written = [event for event in events if event["kind"] == "handled" and event["name"] == "Written" and "peer" in event]
        self.assertEqual(sorted(event["peer"] for event in written), [1, 2, 3])
        for event in written:
            sent = by_id[(event["peer"], event["cause"])]
            self.assertEqual((sent["kind"], sent["name"], sent["peer"]), ("sent", "Written", 0))
            self.assertLessEqual(sent["seconds"], event["seconds"])

    def test_filters(self):
        def lines(*filters):
            return self.tell("messages", self.recording.traces, *filters).splitlines()
        everything = lines()
        self.assertTrue(all("rank 2 " in line for line in lines("--rank", "2")))
        self.assertEqual(sum(len(lines("--rank", str(rank))) for rank in range(WORLD)), len(everything))
        self.assertEqual(len(lines("--name", "write_data", "--kind", "ended")), WORLD)
        self.assertTrue(all("coordinator" in line for line in lines("--actor", "coordinator")))
        self.assertEqual(len(lines("--limit", "3")), 3)
        self.assertEqual(len(lines("--grep", "checkpoint", "--kind", "called")), WORLD)
        moments = [float(line.split()[0]) for line in everything]
        self.assertEqual(moments, sorted(moments))
        # Between two that are printed apart.
        middle = next((one + other) / 2 for one, other in zip(moments[len(moments) // 2:], moments[len(moments) // 2 + 1:])
                      if other - one > 1e-5)
        parts = [len(lines("--until", "%.9f" % middle)), len(lines("--since", "%.9f" % middle))]
        self.assertEqual(sum(parts), len(everything))
        self.assertGreater(min(parts), 0)
        for wrong in (["--since", "noon"], ["--kind", "seen"], ["--actor", "nobody"], ["--phase", "lunch"], ["--rank", "x"]):
            self.tell("messages", self.recording.traces, *wrong, code=WRONG_USE)

    def test_the_timeline_has_a_row_a_rank(self):
        rows = self.tell("timeline", self.recording.traces, "--columns", "60").splitlines()
        self.assertEqual([len(re.match(r"rank +\d+ \|(.*)\|", row).group(1)) for row in rows[:WORLD]], [60] * WORLD)
        self.assertTrue(all("#" in row for row in rows[:WORLD]))

    def test_what_is_exported_follows_the_rules_of_the_format(self):
        events = self.exported(self.recording, "--attempt", "last")["traceEvents"]
        slices, flows = self.check_trace_events(events)
        self.assertEqual({pid for pid, _ in slices}, set(range(WORLD)))
        handled = [event for event in self.told("messages", self.recording.traces, "--kind", "handled", "--actor", "supervisor")
                   if "peer" in event and event["name"] not in ("LinkUp", "LinkDown")]
        self.assertEqual(len(flows), len(handled))
        names = {event["name"] for event in events if event["ph"] == "X"}
        self.assertTrue({"write_data", "finish", "moving", "finishing", "Written to 0", "Written from 3"} <= names, names)
        self.tell("export", self.recording.traces, "--to", "paper", code=WRONG_USE)
        self.assertIn("cannot", self.tell("export", self.recording.traces, "--to", "perfetto", "-o", "/nonexistent/x", code=FOUND_BAD))

    def test_the_whole_job_is_exported_on_the_wall_clock(self):
        exported = self.exported(self.recording)
        self.check_trace_events(exported["traceEvents"])
        self.assertTrue(all("cat" in event for event in exported["traceEvents"] if event["ph"] != "M"))
        # As PyTorch's profiler writes it, so that both can be laid on one time axis.
        base = exported["baseTimeNanoseconds"]
        self.assertEqual(base % 7_889_238_000_000_000, 0)
        calls = [event for event in exported["traceEvents"] if event.get("cat") == "call" and event["pid"] == 0]
        saves = [attempt for attempt in self.told("list", self.recording.traces) if attempt["operation"] == "save"]
        self.assertEqual([call["args"]["attempt"] for call in calls], [save["attempt"] for save in saves])
        self.assertGreater(len(calls), 1)
        for call, save in zip(calls, saves):
            hours, minutes, seconds = save["begin"].split(":")
            of_day = (base / 1e9 + call["ts"] / 1e6) % 86400
            self.assertAlmostEqual(of_day, int(hours) * 3600 + int(minutes) * 60 + float(seconds.split()[0]), delta=1)

    def test_output_that_cannot_be_written_is_not_success(self):
        with open("/dev/full", "w") as full:
            self.assertEqual(cairn("messages", self.recording.traces, stdout=full).returncode, FOUND_BAD)

    def test_ranks_whose_traces_are_missing_cut_or_flipped_are_named(self):
        copy, files = self.copied()
        os.unlink(files[3])
        with open(files[2], "r+b") as file:
            file.truncate(os.path.getsize(files[2]) - 7)
        with open(files[1], "r+b") as file:
            file.seek(5000)
            byte = file.read(1)
            file.seek(5000)
            file.write(bytes([byte[0] ^ 1]))
        text = self.tell(copy)
        self.check_says(text, "3 of 4 ranks", "none of rank 3", "1 cut off", "1 damaged")
        with open(files[0], "r+b") as file:
            file.write(b"????")
        text = self.tell(copy)
        self.check_says(text, "2 of 4 ranks", "none of ranks 0, 3", "1 cannot be read")

    def test_places_without_traces(self):
        said = f"holds no traces (rank-*.trace) and no reports of failed saves (failure-*); there are traces in {self.recording.traces}"
        self.assertIn(said, self.tell(self.recording.run, code=WRONG_USE))
        self.assertIn(said, self.tell(self.recording.root, code=WRONG_USE))
        for command in ([], ["list"], ["explain"]):
            self.assertIn("there is no", self.tell(*command, self.recording.run + "/none", code=WRONG_USE))
        self.assertIn("is no trace", self.tell(os.path.join(self.recording.run, "report.0"), code=FOUND_BAD))
        self.assertIn("--help", self.tell(code=WRONG_USE))


class SlowRank(TraceTest):
    launch = staticmethod(lambda: Recording("attempt", "save", "0", "-1", options=["--inject", "delay=4s@hook:write_data,rank=2,nth=2"]))

    def test_it_is_named(self):
        text = self.summary()
        self.check_says(text, "succeeded", "waited for rank 2 in write since .* for [0-9.]+ m?s", "write: slowest rank 2 ",
                        "notice +rank 2 took .* for write")

    def test_among_others_it_is_mentioned_though_it_was_not_the_last(self):
        both = self.with_traces_of(Recording("attempt", "save", "0", "-1"))
        said = re.search(r"^but +save of .* took [0-9.]+ (ms|s): --attempt '(.*)'$", self.summary(both), re.MULTILINE)
        self.assertTrue(said, self.summary(both))
        self.check_says(self.tell(both, "--attempt", said[2]), "notice +rank 2 took .* for write")
        self.assertEqual([entry["save_id"] for entry in self.told("list", both) if entry["slow"]], [said[2]])
        self.assertEqual(self.tell("list", both).count("succeeded, slow"), 1)
        self.assertNotIn("but ", self.summary())  # two saves say nothing of what is usual

    def test_a_number_that_two_jobs_share_is_refused_with_the_save_ids(self):
        both = self.with_traces_of(Recording("attempt", "save", "0", "-1"))
        ids = [entry["save_id"] for entry in self.told("list", both) if entry["attempt"] == 1]
        self.assertEqual(len(ids), 2)
        said = self.tell(both, "--attempt", "save:1", code=WRONG_USE)
        for name in ids:
            self.assertIn(name, said)
            self.assertEqual(self.told(both, "--attempt", name)["save_id"], name)

    def test_it_is_on_the_critical_path(self):
        steps = self.told("critical-path", self.recording.traces)
        longest = max(steps, key=lambda step: step["seconds"])
        self.assertEqual((longest["rank"], longest["what"]), (2, "write_data"))
        self.assertGreater(longest["percent"], 50)


class SlowStore(TraceTest):
    launch = staticmethod(lambda: Recording("attempt", "save", "0", "-1",
                                            options=["--inject", "delay=800ms@store:write_at,rank=1,nth=all"]))

    def test_the_store_operation_is_named_with_rank_object_and_rate(self):
        self.check_says(self.summary(), "longest +rank 1 write_data, for .* % of the call\\); write_at of its store took .*: __1_0_.*distcp, .*B/s")
        told = self.told(self.recording.traces)
        self.assertEqual((told["slow_store"]["rank"], told["slow_store"]["operation"]), (1, "write_at"))
        self.assertGreater(told["slow_store"]["bytes"], 0)
        self.assertEqual((told["longest_step"]["rank"], told["longest_step"]["what"]), (1, "write_data"))


class HeldUpSender(TraceTest):
    launch = staticmethod(lambda: Recording("attempt", "save", "0", "-1", options=["--inject", "delay=1500ms@send:SameSavePlan,rank=2"]))

    def test_every_command_charges_the_delay_to_the_sender(self):
        text = self.summary()
        self.check_says(text, "waited for rank 2 in local_plan", "local_plan: slowest rank 2 ",
                        "longest +rank 2 held up before it sent SameSavePlan to rank 0",
                        "notice +rank 2 sent SameSavePlan to rank 0 .* late")
        self.assertRegex(self.tell("timeline", self.recording.traces), r"(?m)^rank +2 \|.*P{40}")


class HeldUpReceiver(TraceTest):
    launch = staticmethod(lambda: Recording("attempt", "save", "0", "-1", options=["--inject", "delay=1500ms@receive:GlobalSavePlan,rank=2,nth=2"]))

    def test_the_delay_is_charged_to_the_receiver(self):
        self.check_says(self.summary(), "waited for rank 2 in write", "write: slowest rank 2 ",
                        "longest +rank 2 held up before it acted on GlobalSavePlan from rank 0",
                        "notice +rank 2 acted on GlobalSavePlan from rank 0 .* after it received it")


class KilledAfterItsPart(TraceTest):
    launch = staticmethod(lambda: Recording("attempt", "save", "0", "3", options=["--inject", "kill@send:Written,rank=3,nth=2"]))

    def test_the_end_of_the_process_and_its_last_action_are_named(self):
        self.check_says(self.summary(), "failed +rank 3 ([(]process [^)]*[)] )?lost in write",
                        "where +rank 3: its process was killed by SIGKILL at .*; no hook was running; it last reached the state `reported`")
        told = self.told(self.recording.traces)
        self.assertEqual(told["failures"][0]["fate"], "ended")
        (ends,) = glob.glob(os.path.join(self.recording.traces, "*.ends"))
        with open(ends) as file:
            process = int(re.search(r"(?m)^rank 3 (\d+)", file.read()).group(1))
        self.assertEqual((told["failures"][0]["process"], told["failures"][0]["host"]), (process, socket.gethostname()))
        name = "process %d on %s" % (process, socket.gethostname())
        for text in (self.summary(), self.tell("explain", self.recording.traces), self.recording.output):
            self.assertIn(name, text)
        self.assertIn("rank 3 (%s)" % name, [event["args"]["name"] for event in self.exported(self.recording)["traceEvents"]
                                             if event["name"] == "process_name"])
        self.assertEqual([(end["rank"], end.get("signal")) for end in told["processes"] if "signal" in end], [(3, "SIGKILL")])
        write = next(phase for phase in told["phases"] if phase["name"] == "write")
        self.assertEqual(write["unfinished_ranks"], [3])


class EndedSupervisor(TraceTest):
    launch = staticmethod(lambda: Recording("attempt", "save", "0", "-1", options=["--inject", "throw@receive:GlobalSavePlan,rank=1,nth=2"]))

    def test_the_message_that_it_handled_and_the_exception_are_named(self):
        self.check_says(self.summary(), "failed +rank 1 ([(]process [^)]*[)] )?lost in write",
                        "where +rank 1: its supervisor ended while it handled GlobalSavePlan from rank 0: .*InjectedFault")
        self.assertIn("InjectedFault", self.tell("messages", self.recording.traces, "--grep", "InjectedFault", "--rank", "1"))

    def test_the_rank_s_own_report_has_the_phase_and_the_exception(self):
        with open(os.path.join(self.recording.run, "report.1")) as file:
            self.assertRegex(file.read(), "rank 1 1 internal local_plan internal by supervisor .*the supervisor of rank 1 ended: .*InjectedFault")

    def test_the_reports_of_one_call_are_read_together(self):
        self.assertEqual(len(glob.glob(os.path.join(self.recording.run, "failure-*", "report.txt"))), 2, "rank 1 did not learn the outcome")
        self.check_says(self.summary(self.recording.run), "failed +rank 1 ([(]process [^)]*[)] )?lost in write",
                        "where +rank 1: its supervisor ended while it handled GlobalSavePlan from rank 0", "4 of 4 ranks")


class KilledBeforeTheCall(TraceTest):
    launch = staticmethod(lambda: Recording("leave", "0", "2", "killed"))

    def test_the_end_of_its_process_is_named_though_it_recorded_nothing(self):
        text = self.summary()
        self.check_says(text, "failed +rank 2 ([(]process [^)]*[)] )?lost in join",
                        "where +rank 2: its process was killed by SIGKILL at .*; it recorded nothing in this call, and no message from it arrived")


class KilledBetweenCalls(TraceTest):
    launch = staticmethod(lambda: Recording("leave", "0", "2", "killed-later", keep_going=False))

    def test_the_rank_is_named_with_host_signal_and_last_call(self):
        self.assertEqual(self.recording.code, 128 + 9, self.recording.output)
        (ends,) = glob.glob(os.path.join(self.recording.traces, "*.ends"))
        with open(ends) as file:
            process = int(re.search(r"(?m)^rank 2 (\d+)", file.read()).group(1))
        self.assertRegex(self.summary(), r"\Adied +rank 2 [(]process %d on %s[)]: its process was killed by SIGKILL at .* UTC, .* after this call "
                                         r"ended\nsave of '.*/run/checkpoint' succeeded" % (process, re.escape(socket.gethostname())))

    def test_the_status_names_it_and_the_last_save(self):
        text = subprocess.run([CAIRN, "status", self.recording.traces], stdout=subprocess.PIPE, text=True, check=True).stdout
        self.check_says(text, r"now +no save or load is running", r"last save +.* ago, took .*: .*/run/checkpoint\n", r"saves +1 succeeded, 0 failed",
                        r"died +rank 2 [(].*[)]: its process was killed by SIGKILL, .* ago; its last call was the save of '.*/run/checkpoint'\n")
        self.assertNotIn("rank 1", text)
        told, = json.loads(subprocess.run([CAIRN, "status", self.recording.traces, "--json"], stdout=subprocess.PIPE, check=True).stdout)
        self.assertEqual([(dead["rank"], dead["how"], dead["host"]) for dead in told["died"]], [(2, "was killed by SIGKILL", socket.gethostname())])
        self.assertEqual((told["running"], told["saves"], told["failed"]), ([], 1, 0))


class Metrics(unittest.TestCase):
    def test_the_status_of_each_run_is_that_of_its_ranks(self):
        with tempfile.TemporaryDirectory() as root:
            for rank, alive, failed in ((0, 0, 2), (1, 1, 3)):
                labels = 'rank="%d",run="/data/run"' % rank
                with open(os.path.join(root, "cairn-run-rank-%d.prom" % rank), "w") as file:
                    file.write("# HELP cairn_running Whether\n# TYPE cairn_running gauge\ncairn_running{%s} %d\n" % (labels, alive) +
                               'cairn_saves_total{%s,outcome="success"} 14\ncairn_saves_total{%s,outcome="failed"} %d\n' % (labels, labels, failed) +
                               "cairn_save_last_success_timestamp_seconds{%s} 86400\n" % labels)
            text = subprocess.run([CAIRN, "status", root], stdout=subprocess.PIPE, text=True, check=True).stdout
            self.assertRegex(text, r"\Arun +/data/run\nnow +no save is in progress\nlast save +[0-9]+ d ago\nsaves +14 succeeded, 3 failed\n"
                                   r"ranks +1 of 2 run or were killed, and the others ended as planned\n\Z")
            self.assertIn("nothing is there", subprocess.run([CAIRN, "status", root + "/none"], stderr=subprocess.PIPE, text=True).stderr)


class Running(unittest.TestCase):
    def test_a_save_that_runs_is_no_failure(self):
        with tempfile.TemporaryDirectory() as root:
            traces = os.path.join(root, "traces")
            os.mkdir(os.path.join(root, "run"))
            job = subprocess.Popen([LAUNCHER, "-n", "2", "--trace", traces, "--inject", "delay=300s@hook:write_data,rank=1", "--", RANKS,
                                    "attempt", os.path.join(root, "run"), "save", "0", "-1"],
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            try:
                while "delay=300s" not in job.stdout.readline():
                    self.assertIsNone(job.poll())
                text = ""
                while "write_data" not in text:  # the trace is written a moment later
                    text = cairn(traces).stdout
                self.assertRegex(text, r"\Asave of .* is running, since .* UTC\nwaits +for rank 1, in write since .* UTC\n"
                                       r"runs +rank 1 [(]process [0-9]+ on .*[)] is in write_data [(]its storage[)], since .* UTC\n")
                self.assertNotRegex(text, "failed|DID NOT END|nobody knows")
                told = json.loads(cairn(traces, "--json").stdout)
                self.assertEqual((told["end"], [(hook["rank"], hook["hook"]) for hook in told["running"]]), ("running", [(1, "write_data")]))
                self.assertRegex(cairn("list", traces).stdout, r"(?m)^save:\S+ .* running ")
                text = on_terminal(CAIRN, "status", traces, os.path.join(root, "run"), columns=80)
                self.assertRegex(text, r"now +save of .*\s+since .* UTC,\s+.* ago\s+waits +for rank 1, in write since .* UTC\s+runs +rank 1 ")
                self.assertRegex(text, "last save +there is no checkpoint")
                self.assertLessEqual(max(len(line) for line in text.splitlines()), 80)
                told, = json.loads(subprocess.run([CAIRN, "status", traces, "--json"], stdout=subprocess.PIPE, check=True).stdout)
                self.assertEqual([(call["operation"], call["hooks"][0]["rank"]) for call in told["running"]], [("save", 1)])
                self.assertNotIn("last_save", told)
            finally:
                job.terminate()
                job.communicate()
            self.assertRegex(cairn(traces).stdout, "FAILED|DID NOT END|was cancelled")
            self.assertRegex(subprocess.run([CAIRN, "status", traces], stdout=subprocess.PIPE, text=True).stdout, "no save or load is running")

    def test_an_agreement_that_takes_long_is_shown(self):
        with tempfile.TemporaryDirectory() as root:
            traces = os.path.join(root, "traces")
            job = subprocess.Popen([LAUNCHER, "-n", "2", "--trace", traces, "--inject", "delay=300s@hook:decide,rank=0", "--", RANKS,
                                    "manage", os.path.join(root, "run")], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            try:
                while "delay=300s" not in job.stdout.readline():
                    self.assertIsNone(job.poll())
                text = ""
                while "agreement" not in text:
                    self.assertIsNone(job.poll())
                    text = subprocess.run([CAIRN, "status", traces], stdout=subprocess.PIPE, text=True).stdout
                self.assertRegex(text, r"now +agreement of .*, since .* ago\nruns +rank 0 .* is in decide ")
            finally:
                job.terminate()
                job.communicate()


class ThrownStoreError(TraceTest):
    launch = staticmethod(lambda: Recording("attempt", "save", "0", "-1", options=["--inject", "disk-full@store:create,rank=1,nth=2"]))

    def test_rank_phase_and_the_original_text_are_named(self):
        text = self.summary(self.recording.traces)
        self.check_says(text, "FAILED after .*; nothing was committed", "failed +rank 1 ([(]process [^)]*[)] )?raised in write", "no_space|kNoSpace|space")
        told = self.told(self.recording.traces)
        self.assertEqual([(failure["rank"], failure["kind"], failure["phase"]) for failure in told["failures"]], [(1, "raised", "write")])
        self.assertIn("create", told["failures"][0]["text"])

    def test_the_chain_leads_from_the_call_to_the_failure_and_on_to_the_end(self):
        to_failure, to_end = self.told("explain", self.recording.traces)
        self.assertEqual(to_failure["steps"][0]["kind"], "called")
        last = to_failure["steps"][-1]
        self.assertEqual((last["rank"], last["name"], last["ok"]), (1, "write_data", False))
        self.assertEqual(to_end["steps"][-1]["name"], "outcome")
        self.assertIn("write_data", self.tell("explain", self.recording.traces, "--rank", "1"))
        self.tell("explain", self.recording.traces, "--rank", "9", code=WRONG_USE)

    def test_a_full_disk_leaves_the_report_alone_and_the_command_names_it(self):
        (report,) = glob.glob(os.path.join(self.recording.run, "failure-*"))
        self.assertEqual(os.listdir(report), ["report.txt"])
        with open(os.path.join(report, "report.txt")) as file:
            said = file.read()
        self.assertIn("rank 1", said)
        self.assertNotIn("traces beside this file", said)
        text = self.tell(self.recording.run, code=WRONG_USE)
        self.assertIn("what failed is in " + os.path.join(report, "report.txt"), text)
        self.assertIn("there are traces in " + self.recording.traces, text)

    def test_what_failed_is_listed(self):
        lines = self.tell("messages", self.recording.traces, "--failed", "--rank", "1", "--kind", "ended").splitlines()
        self.assertEqual(len(lines), 1, lines)
        self.assertIn("write_data", lines[0])


class KilledRank(TraceTest):
    launch = staticmethod(lambda: Recording("attempt", "save", "0", "2", options=["--inject", "kill@hook:write_data,rank=2,nth=2"]))

    def test_rank_phase_and_hook_are_named(self):
        text = self.summary()
        self.check_says(text, "FAILED", "failed +rank 2 ([(]process [^)]*[)] )?lost in write", "where +rank 2: its process was killed by SIGKILL at .*; write_data .* began .* and had not ended",
                        "rank 0 \\(coordinates\\) waited for rank 2 in write since .* in vain", "4 of 4 ranks")

    def test_a_part_without_an_end_lasted_until_the_failure(self):
        told = self.told(self.recording.traces)
        write = told["phases"][-1]
        self.assertEqual((write["name"], write["unfinished_ranks"], write["slowest_rank"]), ("write", [2], 2))
        self.assertLessEqual(write["slowest_seconds"], write["seconds"] + told["clock_error_seconds"])

    def test_a_hook_without_an_end_is_no_short_one(self):
        self.check_says(self.tell("timeline", self.recording.traces), r"(?m)^rank +2 .*#\?+.* lost in write$")

    def test_what_the_survivors_left_names_it_without_its_trace(self):
        text = self.summary(self.recording.run)
        self.check_says(text, "FAILED", "failed +rank 2 ([(]process [^)]*[)] )?lost in write", "waited for rank 2", "3 of 4 ranks.*none of rank 2")

    def test_the_launcher_shows_the_ten_lines(self):
        self.assertEqual(self.recording.code, 128 + 9, self.recording.output)
        shown = self.recording.output[self.recording.output.index("cairn-launch: cairn trace "):]
        self.check_says(shown, "FAILED", "failed +rank 2 ([(]process [^)]*[)] )?lost in write")

    def test_the_export_shows_a_hook_without_end(self):
        events = self.exported(self.recording)["traceEvents"]
        self.check_trace_events(events)
        hooks = [event for event in events if event["ph"] == "X" and event["args"].get("ended") is False]
        self.assertEqual([(event["pid"], event["name"]) for event in hooks], [(2, "write_data")])

    def test_on_a_terminal_lines_break_between_words_and_failures_are_coloured(self):
        text = on_terminal(CAIRN, "trace", self.recording.traces, columns=60).replace("\r\n", "\n")
        self.assertIn("\033[31mfailed", text)
        plain = re.sub(r"\033\[\d+m", "", text)
        self.assertLessEqual(max(map(len, plain.splitlines())), 60, plain)
        self.assertEqual(re.sub(r"\n {11}", " ", plain), self.tell(self.recording.traces))
        for command in ("list", "explain", "critical-path", "messages", "timeline"):
            text = re.sub(r"\033\[\d+m", "", on_terminal(CAIRN, "trace", command, self.recording.traces, columns=72).replace("\r\n", "\n"))
            self.assertLessEqual(max(map(len, text.splitlines())), 72, text)

    def test_its_last_sign_is_the_hook(self):
        section = self.told("explain", self.recording.traces)[0]
        self.assertIn("rank 2", section["title"])
        self.assertEqual((section["steps"][-1]["rank"], section["steps"][-1]["name"], section["steps"][-1]["kind"]), (2, "write_data", "began"))


class CutLink(TraceTest):
    launch = staticmethod(lambda: Recording("attempt", "save", "0", "-1", options=["--inject", "drop-link=0@hook:write_data,rank=3,nth=2"]))

    def test_the_rank_and_its_connection_are_named_though_both_live(self):
        text = self.summary()
        self.check_says(text, "FAILED", "failed +rank 3 ([(]process [^)]*[)] )?lost in write", "where +rank 3: it was cut off: it went on", "4 of 4 ranks")
        self.assertEqual(self.told("explain", self.recording.traces)[0]["rank"], 3)
        down = self.told("messages", self.recording.traces, "--name", "LinkDown", "--rank", "0")
        self.assertIn(3, [event["peer"] for event in down])


class FrozenCoordinator(TraceTest):
    launch = staticmethod(lambda: Recording(
        "freeze", "save", "0", "freeze@hook:create_global_plan,rank=0",
        options=["--inject", "kill@hook:begin,nth=999999", "--env", "CAIRN_TEST_SILENCE_MS=%d" % (4000 if SLOW else 1000)]))

    def test_rank_phase_and_wait_are_named(self):
        self.assertEqual(self.recording.code, 0, self.recording.output)
        text = self.summary()
        self.check_says(text, "FAILED", "failed +rank 0 ([(]process [^)]*[)] )?silent in ", "waited for rank 0 in .* in vain", "where +rank 0: its process stood still from ")
        told = self.told(self.recording.traces)
        self.assertEqual([failure["rank"] for failure in told["failures"]], [0])
        self.assertEqual(told["wait"]["awaited"], [0])
        section = self.told("explain", self.recording.traces)[0]
        self.assertRegex(section["title"], r"rank 0 [(]process [0-9]+ on .*[)], silent in \w+")
        self.assertEqual((section["rank"], section["steps"][0]["kind"], section["steps"][-1]["rank"]), (0, "called", 0))


class KilledRankAmongOthers(TraceTest):
    launch = staticmethod(lambda: Recording("attempt", "save", "0", "2", options=["--inject", "kill@hook:write_data,rank=2,nth=2"]))

    @unittest.skipIf(SLOW, "sanitizers need memory of their own")
    def test_how_large_a_recording_is_costs_no_memory(self):
        copy, files = self.copied()
        code, small = memory_of("list", copy)
        self.assertEqual(code, FINE)
        with open(files[1], "rb") as file:
            content = file.read()
        with open(files[1], "ab") as file:
            while file.tell() < 192 << 20:
                file.write(content)
        code, large = memory_of("list", copy)
        self.assertEqual(code, FINE)
        self.assertLess(large, small + (64 << 20))

    def test_a_reader_that_leaves_early_is_no_trouble(self):
        child = subprocess.Popen([CAIRN, "trace", "messages", self.recording.traces], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 bufsize=0)
        child.stdout.read(10)
        child.stdout.close()
        said = child.stderr.read().decode()
        child.stderr.close()
        child.wait(PATIENCE)
        self.assertNotIn("terminate", said)
        self.assertLessEqual(len(said.splitlines()), 1, said)

    def test_an_empty_directory_says_what_would_be_there(self):
        empty = os.path.join(self.recording.root, "empty")
        os.mkdir(empty)
        for command in ((), ("explain",), ("timeline",)):
            self.assertIn("holds no traces", self.tell(*command, empty, code=WRONG_USE))


class CancelledSave(TraceTest):
    launch = staticmethod(lambda: Recording("cancel", "3"))

    def test_who_cancelled_and_why(self):
        text = self.tell(self.recording.traces, "--attempt", "last")
        self.check_says(text, "was cancelled", "failed +rank 3 ([(]process [^)]*[)] )?cancelled in", "the operator has had enough", "nothing was committed")

    def test_it_is_no_failure_that_is_looked_at_or_reported_first(self):
        self.assertEqual([entry["end"] for entry in self.told("list", self.recording.traces)], ["succeeded", "cancelled"])
        self.assertEqual(glob.glob(os.path.join(self.recording.run, "failure-*")), [])


class HangingHook(TraceTest):
    launch = staticmethod(lambda: Recording("hang", "2", copied=True, log="info"))

    def setUp(self):
        if "no stacks" in self.recording.output:
            self.skipTest(self.recording.output)
        if not shutil.which("addr2line"):
            self.skipTest("addr2line, of the package binutils, is not installed")

    def test_the_report_points_to_the_stack(self):
        self.check_says(self.summary(self.recording.run), r"notice +rank 2 was in write_data \(its storage\) for .* when its stack was taken: `cairn trace explain` shows it")

    def test_the_rank_for_which_others_waited_until_the_deadline_is_the_first(self):
        self.check_says(self.summary(), r"\nfailed +rank 2 ([(]process [^)]*[)] )?(cancelled in write \[deadline\]: .* waited for its own write_data|busy in write).*\nfailed +rank 0 ([(]process [^)]*[)] )?cancelled .* 2 more ranks")
        self.assertNotIn("no hook was running", self.summary())

    def test_explain_names_the_function_in_which_the_hook_waits(self):
        for traces in (self.recording.run, self.recording.traces):
            text = self.tell("explain", traces)
            stack = text[text.index("Stack of rank 2"):]
            self.check_says(stack, r"Stack of rank 2 in write_data \(its storage\), in write, after ", r"(?m)^ +\d+  wait_in_the_user_hook  \(.*ranks\+0x")

    # After the test above: it changes the program for good.
    def test_names_are_left_out_if_the_module_was_replaced_by_an_older_one(self):
        def functions():
            frames = [frame for entry in self.told("explain", self.recording.run) for frame in entry.get("frames", [])]
            return {frame["function"] for frame in frames if frame["module"] == self.recording.program}
        self.assertIn("wait_in_the_user_hook", functions())
        os.utime(self.recording.program, (1e9, 1e9))
        self.assertEqual(functions(), {""})


class ProgressLine(unittest.TestCase):
    def test_a_save_under_the_launcher_draws_its_progress_on_the_terminal(self):
        run = tempfile.mkdtemp(prefix="cairn-progress-")
        self.addCleanup(shutil.rmtree, run)
        master, slave = pty.openpty()
        self.addCleanup(os.close, master)
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 150, 0, 0))
        process = subprocess.Popen([LAUNCHER, "-n", "2", "--timeout", str(PATIENCE), "--", RANKS, "save", run, "1", "go"], stdin=subprocess.DEVNULL,
                                   stdout=slave, stderr=slave, env={**os.environ, "TERM": "xterm"})
        os.close(slave)
        text = b""
        with contextlib.suppress(OSError):  # EIO: nobody has it open any more
            while part := os.read(master, 65536):
                text += part
                # The ranks wait for this file within their writes.
                if b": writing " in text:
                    open(os.path.join(run, "go"), "w").close()
        self.assertEqual(process.wait(), 0, text)
        drawn, erased = re.findall(rb"\r(saving [^\x1b]*: writing [^\x1b]*)\x1b8", text), text.rindex(b"\x1b[J")
        self.assertRegex(drawn[0].decode(), r"/checkpoint: writing \d+ %, .* KiB, .* KiB/s")
        self.assertNotIn(b"saving", text[erased:])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
