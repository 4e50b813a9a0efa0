#!/usr/bin/env python3
"""Hostile and damaged files, given to the command from outside. Started as cairn_command.py says.

Each case of hostile_files.py is given to one command, and each loop makes a few mutations. CAIRN_HOSTILE_RUNS=N makes N mutations in each loop,
and gives each case to every command. CAIRN_HOSTILE_FIRST is the number of the first mutation, to repeat one.
"""

import concurrent.futures
import os
import random
import resource
import shutil
import struct
import subprocess
import tempfile

import hostile_files
from cairn_command import CAIRN, Command, FINE, FIXTURES, FOUND_BAD, NOT_CHECKED, read_safetensors, run_tests, WRONG_USE

RUNS = int(os.environ.get("CAIRN_HOSTILE_RUNS", "4"))
FIRST = int(os.environ.get("CAIRN_HOSTILE_FIRST", "0"))
EVERY_COMMAND = "CAIRN_HOSTILE_RUNS" in os.environ
MEMORY_MAX = 128 << 20  # above a command that does nothing; no file here has more than 2 MiB
COMMANDS = (["verify", "{}"], ["inspect", "{}"], ["inspect", "{}", "--json"], ["cat", "{}", "a"], ["diff", "{}", "{}"],
            ["convert", "{}", "{}.out", "--to", "torch"], ["convert", "{}", "{}.out", "--to", "safetensors", "--skip-unsupported"],
            ["convert", "{}", "{}.out", "--to", "dcp"])


def limit():
    resource.setrlimit(resource.RLIMIT_FSIZE, (256 << 20, 256 << 20))
    resource.setrlimit(resource.RLIMIT_CPU, (120, 120))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def run(*arguments):
    """The exit code (negative: a signal), the output, and the peak of memory in bytes."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen([CAIRN, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=output, stderr=output, preexec_fn=limit)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)  # so that Popen does not wait for it as well
        output.seek(0)
        return process.returncode, output.read().decode(errors="surrogateescape"), usage.ru_maxrss * 1024


def contents(path):
    """Of a directory as of a file, without following links."""
    if not path.is_dir() or path.is_symlink():
        return path.read_bytes() if path.is_file() and path.stat().st_size < 2**30 else None
    return {entry.name: contents(entry) for entry in path.iterdir()}


class Guarded(Command):
    def setUp(self):
        super().setUp()
        self.marker = self.root / "marker"
        self.idle_memory = run("cat", "--help")[2]

    def harmless(self, path, command, told):
        """Runs the command on what is at `path`, in a directory of its own; returns its exit code."""
        before = contents(path)
        code, output, memory = run(*(part.format(path) for part in command))
        told = f"{told}: cairn {command[0]} {command[3:]}: {output[-2000:]}"
        self.assertIn(code, (FINE, FOUND_BAD, WRONG_USE, NOT_CHECKED), told)
        for sign in ("terminate called", "broken invariant", "bad_alloc", "out of memory", "\x1b"):
            self.assertNotIn(sign, output, told)
        self.assertFalse(self.marker.exists(), told)
        self.assertLess(memory, self.idle_memory + MEMORY_MAX, told)
        self.assertEqual(contents(path), before, told)
        made = {entry.name for entry in path.parent.iterdir()} - {path.name}
        self.assertEqual(made, {path.name + ".out"} if command[0] == "convert" and code == FINE else set(), told)
        for name in made:
            made_there = path.parent / name
            shutil.rmtree(made_there) if made_there.is_dir() else made_there.unlink()
        return code

    def in_parallel(self, act, items):
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            for result in [pool.submit(act, *item) for item in items]:
                result.result()


class Hostile(Guarded):
    def test_a_run_with_a_hostile_record_is_listed(self):
        path = self.root / "case" / "x"
        path.mkdir(parents=True)
        hostile_files.of_record(content=b"]" * 2**20)(path / "step_1")
        self.assertEqual(self.harmless(path, ["ls", "{}"], "a megabyte of lists"), FOUND_BAD)

    def test_no_hostile_file_does_harm(self):
        sound = self.checkpoint(name="sound")
        seen = set()

        def act(number, name, make):
            path = self.root / f"case_{number}" / "x"
            path.parent.mkdir()
            make(path, sound) if getattr(make, "needs_sound", False) else make(path)
            for command in COMMANDS if EVERY_COMMAND else [COMMANDS[number % len(COMMANDS)]]:
                if command[0] == "diff" and name == "tensor with 2^50 elements":
                    continue  # it compares all of them
                seen.add(self.harmless(path, command, name))
            shutil.rmtree(path.parent)

        cases = hostile_files.cases(self.marker)
        self.assertGreaterEqual(len(cases), 200)
        self.in_parallel(act, [(number, *case) for number, case in enumerate(cases)])
        self.assertLessEqual({FINE, FOUND_BAD}, seen, "some are only odd")

    def test_a_record_that_does_not_describe_its_files_is_refused(self):
        sound = self.checkpoint(name="sound")
        for number, lacking in enumerate(({2}, {3}, {4}, {2, 4})):
            path = self.root / f"lacking_{number}" / "x"
            path.parent.mkdir()
            hostile_files.of_section(lambda section, lacking=lacking: hostile_files.without(section, lacking))(path, sound)
            for command in (COMMANDS[0], COMMANDS[5]):
                self.assertEqual(self.harmless(path, command, f"lacking {lacking}"), FOUND_BAD, f"lacking {lacking}")

    def test_what_is_sound_of_the_kind_is_taken(self):
        """Otherwise the cases would be refused for another reason."""
        (self.root / "file").mkdir()
        (self.root / "record").mkdir()
        file, record = self.root / "file" / "x", self.root / "record" / "x"
        hostile_files.of_pickle(hostile_files.state(a=hostile_files.tensor()))(file)
        length = file.stat().st_size
        hostile_files.of_record(length=0)(record)
        length = (record / "__0_0.distcp").stat().st_size
        (record / ".metadata").write_bytes(hostile_files.record(length=length))
        for path in (file, record):
            for command in COMMANDS:
                if path == record or command[0] != "verify":
                    self.assertEqual(self.harmless(path, command, "sound"), FINE, command)


def mutated(content, chance):
    """As fuzzers do it, with one to four changes."""
    content = bytearray(content)
    for _ in range(chance.randint(1, 4)):
        if not content:
            return b"\0"
        at = chance.randrange(len(content))
        length = min(len(content) - at, 1 << chance.randrange(13))
        kind = chance.randrange(8)
        if kind < 3:
            content[at] ^= 1 << chance.randrange(8)
        elif kind == 3:
            content[at:at + 4] = struct.pack("<I", chance.choice((0, 1, 0x7fffffff, 0x80000000, 0xffffffff, len(content))))
        elif kind == 4:
            del content[at:at + length]
        elif kind == 5:
            content[at:at] = content[at:at + length]
        elif kind == 6:
            content[at:at + length] = bytes(length)
        else:
            other = chance.randrange(len(content))
            content[at:at + length], content[other:other + length] = content[other:other + length], content[at:at + length]
    return bytes(content)


class Mutations(Guarded):
    def mutations(self, act):
        def one(number):
            folder = self.root / f"mutation_{number}"
            folder.mkdir()
            act(folder / "x", random.Random(number), f"mutation {number} (repeat it with CAIRN_HOSTILE_FIRST={number} CAIRN_HOSTILE_RUNS=1)")
            shutil.rmtree(folder)
        self.in_parallel(one, [(number,) for number in range(FIRST, FIRST + RUNS)])

    def test_damage_to_a_checkpoint_of_ours_is_found_and_never_converted(self):
        sound, other = self.checkpoint(name="sound"), self.checkpoint("--set", "weight,3,7", name="other")

        def act(path, chance, told):
            shutil.copytree(sound, path)
            file = chance.choice(sorted(path.iterdir()))
            content = file.read_bytes()
            kind = chance.randrange(6)
            if kind == 0:
                file.unlink()
            elif kind == 1:
                file.write_bytes(chance.choice(sorted(other.iterdir())).read_bytes())
            else:
                while file.read_bytes() == content:
                    file.write_bytes(mutated(content, chance))
            self.assertEqual(self.harmless(path, COMMANDS[0], told), FOUND_BAD, told)
            self.assertEqual(self.harmless(path, COMMANDS[5], told), FOUND_BAD, told)

        self.mutations(act)

    def test_damage_to_the_data_of_pytorchs_checkpoints_changes_no_tensor(self):
        def act(path, chance, told):
            source = FIXTURES / chance.choice(("single", "threads", "fsdp_even", "fsdp_uneven", "hsdp_2x2", "nested"))
            shutil.copytree(source, path)
            file = chance.choice(sorted(path.glob("*.distcp")))
            file.write_bytes(mutated(file.read_bytes(), chance))
            self.harmless(path, COMMANDS[0], told)
            target = path.parent / "made"
            code, output, _ = run("convert", path, target, "--to", "safetensors", "--skip-unsupported")
            self.assertIn(code, (FINE, FOUND_BAD), told + output)
            if code == FINE:
                expected, made = (read_safetensors(place)[0] for place in (source / "expected.safetensors", target))
                self.assertEqual({name: expected[name] for name in made}, made, told)

        self.mutations(act)

    def test_mutated_records_of_pytorchs(self):
        def act(path, chance, told):
            shutil.copytree(FIXTURES / chance.choice(("single", "threads", "nested")), path)
            record = path / ".metadata"
            record.write_bytes(mutated(record.read_bytes(), chance))
            self.harmless(path, chance.choice(COMMANDS), told)

        self.mutations(act)

    def test_mutated_records_of_ours_with_checksums_that_fit(self):
        sound = self.checkpoint(name="sound")

        def act(path, chance, told):
            hostile_files.of_section(lambda section: mutated(section, chance))(path, sound)
            self.harmless(path, chance.choice(COMMANDS), told)

        self.mutations(act)

    def test_mutated_pickles_in_archives_with_checksums_that_fit(self):
        seeds = [hostile_files.state(a=hostile_files.tensor(), b=hostile_files.listed(hostile_files.integer(1), hostile_files.REAL)),
                 hostile_files.state(a=hostile_files.state(b=hostile_files.sequence(hostile_files.tensor(), hostile_files.TRUE)))]

        def act(path, chance, told):
            hostile_files.write_archive(path, mutated(hostile_files.whole(chance.choice(seeds)), chance))
            self.harmless(path, chance.choice(COMMANDS[1:]), told)

        self.mutations(act)


if __name__ == "__main__":
    run_tests()
