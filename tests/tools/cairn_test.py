#!/usr/bin/env python3
"""The command `cairn` from outside: output, exit codes, and what it leaves behind.

usage: cairn_test.py CAIRN MAKE_CHECKPOINT FIXTURES [TEST…]      FIXTURES: checkpoints that PyTorch wrote
"""

import fcntl
import json
import os
import pathlib
import pickletools
import pty
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import unittest
import zipfile

CAIRN, MAKE_CHECKPOINT, FIXTURES = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
FINE, FOUND_BAD, WRONG_USE = 0, 1, 2

WEIGHT = struct.pack("<12f", *range(12))


def cairn(*arguments, **options):
    return subprocess.run([CAIRN, *map(str, arguments)], stdout=options.pop("stdout", subprocess.PIPE), stderr=subprocess.PIPE,
                          text=True, **options)


def on_terminal(*arguments, **environment):
    """What the command writes where standard output is a terminal."""
    master, slave = pty.openpty()
    process = subprocess.Popen([CAIRN, *map(str, arguments)], stdout=slave, stderr=subprocess.DEVNULL,
                               env={**os.environ, "TERM": "xterm", **environment})
    os.close(slave)
    written = b""
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # the terminal is gone with its last user
            part = b""
        if not part:
            break
        written += part
    os.close(master)
    process.wait()
    return written.decode()


def read_safetensors(path):
    """Name -> (dtype, shape, bytes); the metadata; the names in file order. Checks what every reader of the format relies on."""
    content = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8:8 + length])
    metadata = header.pop("__metadata__", {})
    tensors, end = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: (item[1]["data_offsets"], item[0])):
        begin, stop = entry["data_offsets"]
        assert begin == end, f"{name} begins at {begin}, the tensor before it ends at {end}"
        end = stop
        tensors[name] = (entry["dtype"], entry["shape"], content[8 + length + begin:8 + length + stop])
    assert 8 + length + end == len(content), "the file ends with the last tensor"
    return tensors, metadata, list(header)


class Command(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="cairn_tools_"))
        self.addCleanup(shutil.rmtree, self.root)

    def checkpoint(self, *options, name="step_7"):
        path = self.root / name
        subprocess.run([MAKE_CHECKPOINT, path, *options], check=True)
        return path

    def fixture(self, name):
        """A copy, for tests that damage it."""
        return pathlib.Path(shutil.copytree(FIXTURES / name, self.root / name))

    def fails(self, code, *arguments, text):
        done = cairn(*arguments)
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertIn(text, done.stderr)
        self.assertNotIn("terminate called", done.stderr)
        return done

    def damaged(self, code, path):
        done = cairn("verify", path)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr


class Use(Command):
    def test_the_record_in_place_of_its_directory(self):
        record = self.checkpoint() / ".metadata"
        for command in ("inspect", "verify"):
            self.fails(WRONG_USE, command, record, text="name the directory")

    def test_wrong_use_ends_with_2_and_says_what_is_wrong(self):
        for arguments in ([], ["look"], ["inspect"], ["verify", "--threads", "0", "x"], ["convert", "a", "b"],
                          ["convert", "a", "b", "--to", "zip"], ["convert", "a", "b", "--to", "dcp", "--world", "0"], ["inspect", "a", "b"]):
            done = cairn(*arguments)
            self.assertEqual(done.returncode, WRONG_USE, arguments)
            self.assertTrue(done.stderr or done.stdout)

    def test_help_and_version(self):
        self.assertIn("Examples:", cairn("--help").stdout)
        self.assertEqual(cairn("--help").returncode, FINE)
        self.assertRegex(cairn("--version").stdout, r"^cairn \d+\.\d+\.\d+\nLibTorch [\d.]+\S*\nNCCL (none|[\d.]+)\nCAF [\d.]+\nProtobuf [\d.]+\n")

    def test_a_place_without_a_checkpoint_is_wrong_use(self):
        for command in (["inspect"], ["verify"]):
            self.fails(WRONG_USE, *command, self.root / "nowhere", text="no checkpoint")
            self.fails(WRONG_USE, *command, self.root, text="no checkpoint")
            self.fails(WRONG_USE, *command, "ftp://host/x", text="ftp")
        self.fails(WRONG_USE, "convert", self.root / "nowhere", self.root / "out", "--to", "safetensors", text="no checkpoint")

    def test_a_checkpoint_that_was_never_completed_is_bad(self):
        path = self.checkpoint()
        (path / ".metadata").unlink()
        for command in ("inspect", "verify"):
            self.fails(FOUND_BAD, command, path, text=".metadata")

    def test_output_that_cannot_be_written_is_not_success(self):
        with open("/dev/full", "w") as full:
            self.assertEqual(cairn("inspect", self.checkpoint(), stdout=full).returncode, FOUND_BAD)

    def test_who_reads_no_further_is_no_error(self):
        read, write = os.pipe()
        os.close(read)
        for ignored in (False, True):  # also below a parent that ignores the signal
            before = (lambda: signal.signal(signal.SIGPIPE, signal.SIG_IGN)) if ignored else None
            done = cairn("inspect", self.checkpoint(name=f"step_{int(ignored)}"), stdout=write, preexec_fn=before)
            self.assertEqual((done.returncode, done.stderr), (-signal.SIGPIPE, ""))
        os.close(write)

    def test_what_may_not_be_read_is_said_in_a_line(self):
        path = self.checkpoint()
        if os.geteuid() == 0:
            self.skipTest("root may read everything")
        (path / ".metadata").chmod(0)
        self.assertEqual(len(self.fails(FOUND_BAD, "inspect", path, text="ermission").stderr.splitlines()), 1)

    def test_colours_are_for_terminals_that_want_them(self):
        path = self.checkpoint()
        self.assertIn("\033[32m", on_terminal("verify", path))
        self.assertNotIn("\033", on_terminal("verify", path, NO_COLOR="1"))
        self.assertNotIn("\033", on_terminal("verify", path, TERM="dumb"))


class Documentation(Command):
    """The manual and the completions know what the command line knows."""

    @staticmethod
    def commands(*path):
        """Each command with its options, as --help tells them."""
        text = cairn(*path, "--help").stdout
        below = re.search(r"^Subcommands:\n((?:  .*\n)+)", text, re.MULTILINE)
        options = re.search(r"^Options:\n((?:  .*\n)+)", text, re.MULTILINE)
        # Descriptions begin after two spaces or on a line of their own.
        heads = [line.strip().split("  ")[0] for line in options.group(1).splitlines() if re.match(r"  -", line)]
        yield " ".join(path), [name for head in heads for name in re.findall(r"(?<![\w-])--?\w[\w-]*", head)]
        for name in re.findall(r"^  (\S+)", below.group(1), re.MULTILINE) if below else []:
            yield from Documentation.commands(*path, name)

    def test_every_command_has_examples_and_all_are_in_manual_and_completions(self):
        manual = cairn("manual").stdout.replace("\\-", "-")
        bash, zsh = cairn("completion", "bash").stdout, cairn("completion", "zsh").stdout
        seen = dict(self.commands())
        self.assertLessEqual({"ls", "inspect", "verify", "diff", "cat", "convert", "prune", "doctor", "trace", "trace explain"}, set(seen))
        for command, options in seen.items():
            if command and " " not in command:
                self.assertIn("Examples:", cairn(command, "--help").stdout, command)
            page = manual[manual.index(f'.SS "cairn {command}'):] if command else manual
            (words,) = re.findall(rf"^    '{' ' + command if command else ''}'\) words='(.*)' ;;$", bash, re.MULTILINE)
            for option in options:
                self.assertIn(option, words.split(), command)
                self.assertIn(f"'{option}:", zsh)
                if option not in ("-h", "--help", "--version"):
                    self.assertIn(option, page, command)
        for code in (FINE, FOUND_BAD, WRONG_USE, 141):
            self.assertIn(f"\n.TP\n{code}\n", manual)

    def completed(self, *words):
        script = f"source <({CAIRN} completion bash); COMP_WORDS=({' '.join(map(repr, words))}); COMP_CWORD={len(words) - 1}; _cairn; " \
                 "printf '%s\\n' \"${COMPREPLY[@]}\""
        return subprocess.run(["bash", "-c", script], check=True, capture_output=True, text=True, cwd=self.root).stdout.split()

    def test_bash_completes(self):
        (self.root / "insight").touch()
        self.assertEqual(self.completed("cairn", "ins"), ["inspect"])
        self.assertEqual(self.completed("cairn", "convert", "a", "b", "--to", "d"), ["dcp"])
        self.assertEqual(self.completed("cairn", "inspect", "--la"), ["--layout"])
        self.assertEqual(self.completed("cairn", "inspect", "ins"), ["insight"])
        self.assertIn("explain", self.completed("cairn", "trace", "ex"))
        self.assertIn("--rank", self.completed("cairn", "trace", "explain", "run", "--r"))

    def test_the_manual_is_formatted_without_complaint(self):
        if shutil.which("groff") is None:
            self.skipTest("there is no groff")
        page = cairn("manual").stdout
        done = subprocess.run(["groff", "-man", "-Tutf8", "-Kutf8", "-ww"], input=page, capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("EXIT STATUS", re.sub(".\b", "", done.stdout))  # letters that are struck twice are bold

    def test_other_shells_are_wrong_use(self):
        self.fails(WRONG_USE, "completion", "fish", text="fish")


class Inspect(Command):
    def test_text_names_keys_shapes_and_origin(self):
        text = cairn("inspect", self.checkpoint()).stdout
        for part in ("Cairn", "├─ weight", "[3, 4]", "bfloat16", "step         7", "note = for the tests", ".distcp"):
            self.assertIn(part, text)
        self.assertNotIn("\033", text, "colours are for terminals")

    def test_of_some_keys_only(self):
        told = json.loads(cairn("inspect", self.checkpoint(), "--json", "--tensors", "model.*t", "--tensors", "st?p").stdout)
        self.assertEqual([entry["key"] for entry in told["keys"]], ["model.weight", "model.count", "step"])
        self.fails(WRONG_USE, "inspect", self.root / "step_7", "--tensors", "modul*", text="no key")

    def test_what_each_rank_wrote(self):
        told = json.loads(cairn("inspect", self.checkpoint("--grid"), "--json", "--tensors", "grid").stdout)
        self.assertEqual([(share["rank"], share["chunks"], share["bytes"]) for share in told["ranks"]],
                         [(rank, 1, 3 * 4 * 4) for rank in range(4)])
        text = cairn("inspect", self.root / "step_7").stdout
        self.assertRegex(text, r"grid +float32 +\[6, 8\] +4 chunks +192 B +ranks 0-3")

    def test_the_layout_is_drawn_to_scale(self):
        lines = cairn("inspect", self.checkpoint("--grid"), "--layout").stdout.splitlines()
        grid = lines[lines.index("grid") + 2:]
        self.assertEqual(grid[0].split(), ["0", "4", "8"])
        self.assertRegex(grid[1], "^ *0 ┌─+┬─+┐$")
        first, second = (len(part) for part in grid[1].split("┌")[1][:-1].split("┬"))
        self.assertLessEqual(abs(first - second), 1, "both halves are as wide")
        picture = grid[1:next(i for i, line in enumerate(grid) if "└" in line) + 1]
        middle = next(i for i, line in enumerate(picture) if "┼" in line)
        self.assertRegex(picture[middle], "^ *3 ├─+┼─+┤$")
        self.assertLessEqual(abs(middle - (len(picture) - 1 - middle)), 1, "both halves are as high")
        self.assertEqual([line.replace("│", " ").split() for line in picture if any(digit in line for digit in "0123")
                          and "─" not in line], [["0", "1"], ["2", "3"]])
        bar = lines[lines.index("line") + 2:]
        self.assertEqual(bar[0].split(), ["0", "3", "6", "9", "10"])
        self.assertEqual(bar[2].replace("│", " ").split(), ["0", "1", "2", "3"])
        cube = lines[lines.index("cube") + 2:]
        self.assertEqual([line.split(maxsplit=2) for line in cube[:4]],
                         [["rank", str(rank), f"[{rank}:{rank + 1}, 0:3, 0:2]"] for rank in range(4)])

    def test_what_is_not_cut_is_said_once(self):
        text = cairn("inspect", self.checkpoint(), "--layout").stdout
        self.assertEqual(text.count("whole on rank 0"), 1)

    def test_json_says_all_of_it(self):
        path = self.checkpoint()
        done = cairn("inspect", path, "--json")
        self.assertEqual(done.returncode, FINE, done.stderr)
        told = json.loads(done.stdout)
        self.assertEqual((told["writer"], told["step"], told["sequence"], told["world_size"]), ("cairn", 7, 1, 1))
        self.assertEqual(told["user_metadata"], {"note": "for the tests"})
        keys = {entry["key"]: entry for entry in told["keys"]}
        self.assertEqual(list(keys)[:2], ["model.weight", "model.bias"])
        weight = keys["model.weight"]
        self.assertEqual((weight["kind"], weight["dtype"], weight["shape"], weight["path"]),
                         ("tensor", "float32", [3, 4], ["model", "weight"]))
        self.assertEqual(keys["step"]["kind"], "bytes")
        # What it says about places is true: the raw elements are where it points.
        chunk = weight["chunks"][0]
        content = (path / chunk["file"]).read_bytes()
        self.assertEqual(content[chunk["payload_offset"]:chunk["payload_offset"] + 48], WEIGHT)
        for file in told["files"]:
            self.assertEqual(file["length"], (path / file["name"]).stat().st_size)

    def test_a_checkpoint_of_pytorch(self):
        told = json.loads(cairn("inspect", FIXTURES / "nested", "--json").stdout)
        self.assertEqual(told["writer"], "pytorch")
        self.assertNotIn("sequence", told)
        keys = {entry["key"]: entry for entry in told["keys"]}
        self.assertEqual(keys["unicode.名前"]["shape"], [2])
        self.assertEqual(keys["dtypes.bfloat16"]["dtype"], "bfloat16")
        self.assertIn("PyTorch", cairn("inspect", FIXTURES / "nested").stdout)

    def test_chunks_are_listed_when_asked_for(self):
        self.assertNotIn("[0:", cairn("inspect", FIXTURES / "threads").stdout)
        self.assertIn("[0:4, 0:8]", cairn("inspect", FIXTURES / "threads", "--chunks").stdout)


class Ls(Command):
    def setUp(self):
        super().setUp()
        for name, step in (("step_10", 10), ("step_20", 20), ("step_5", 5)):  # in this order: going back is going on
            self.checkpoint("--step", str(step), name=name)

    def told(self):
        done = cairn("ls", self.root, "--json")
        self.assertEqual(done.returncode, FINE, done.stderr)
        return json.loads(done.stdout)

    def test_the_last_to_be_committed_comes_first(self):
        told = self.told()
        self.assertEqual([entry["name"] for entry in told["checkpoints"]], ["step_5", "step_20", "step_10"])
        self.assertEqual((told["latest"], told["latest_sound"]), ("step_5", "step_5"))
        first = told["checkpoints"][0]
        self.assertEqual((first["step"], first["sequence"], first["world_size"], first["writer"]), (5, 3, 1, "cairn"))
        self.assertEqual(first["bytes"], sum(path.stat().st_size for path in (self.root / "step_5").glob("*.distcp")))
        self.assertAlmostEqual(first["saved_at"], (self.root / "step_5" / ".metadata").stat().st_mtime, places=3)
        lines = cairn("ls", self.root).stdout.splitlines()
        self.assertRegex(lines[1], r"^step_5 +5 +\d.* 1 +.* sound, latest$")
        self.assertEqual(len(lines), 5)

    def test_a_damaged_one_is_named_and_passed_over(self):
        next((self.root / "step_5").glob("*.distcp")).unlink()
        record = self.root / "step_20" / ".metadata"
        record.write_bytes(record.read_bytes()[:-10])
        told = self.told()
        self.assertEqual((told["latest"], told["latest_sound"]), ("step_5", "step_10"))
        self.assertEqual({entry["name"]: entry["sound"] for entry in told["checkpoints"]},
                         {"step_5": False, "step_20": False, "step_10": True})
        text = cairn("ls", self.root).stdout
        self.assertRegex(text, "step_5 .*DAMAGED: .*latest")
        self.assertRegex(text, "step_10 .*sound, latest that is sound")

    def test_leftovers_are_told_from_checkpoints(self):
        (self.root / "step_20" / ".metadata").unlink()
        (self.root / "step_10" / ".metadata").unlink()
        (self.root / "step_10" / (".attempt-cairn-" + 32 * "0" + "-00000000-1")).mkdir()
        (self.root / "failure-x").mkdir()
        (self.root / "notes").mkdir()
        told = self.told()
        self.assertEqual([entry["name"] for entry in told["checkpoints"]], ["step_5"])
        self.assertEqual([(entry["name"], entry["open"]) for entry in told["leftovers"]], [("step_10", True), ("step_20", False)])
        self.assertEqual(told["failure_reports"], ["failure-x"])
        text = cairn("ls", self.root).stdout
        self.assertIn("leftover: step_20", text)
        self.assertIn("cairn trace", text)

    def test_pinned_ones_and_those_of_pytorch(self):
        (self.root / "step_10" / ".pinned").touch()
        self.fixture("threads")
        told = {entry["name"]: entry for entry in self.told()["checkpoints"]}
        self.assertEqual([name for name in told if told[name]["pinned"]], ["step_10"])
        self.assertEqual((told["threads"]["writer"], told["threads"]["world_size"], told["threads"]["sound"]), ("pytorch", 4, True))
        self.assertIsNone(told["threads"]["step"])

    def test_no_run(self):
        self.fails(WRONG_USE, "ls", self.root / "step_5", text="is a checkpoint, not a run")
        self.fails(WRONG_USE, "ls", self.root / "nowhere", text="nothing is there")


class Verify(Command):
    def test_whole_checkpoints_are_fine(self):
        for path in [self.checkpoint(), *(FIXTURES / name for name in ("single", "nested", "threads", "fsdp_uneven"))]:
            self.assertEqual(cairn("verify", path).returncode, FINE, path)

    def test_a_flipped_bit_is_found_wherever_it_is(self):
        path = self.checkpoint()
        for file in sorted(path.iterdir()):
            content = file.read_bytes()
            # Both ends and places between; that no byte is left out is tested inside, byte by byte.
            for at in sorted({0, 1, len(content) // 3, len(content) // 2, len(content) - 9, len(content) - 1}):
                file.write_bytes(content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1:])
                self.assertIn(file.name, self.damaged(FOUND_BAD, path), f"byte {at}")
            file.write_bytes(content)
        self.damaged(FINE, path)

    def test_all_faults_are_listed(self):
        path = self.fixture("threads")
        gone, short = path / "__0_0.distcp", path / "__2_3.distcp"
        gone.unlink()
        short.write_bytes(short.read_bytes()[:-100])
        text = self.damaged(FOUND_BAD, path)
        self.assertIn(gone.name, text)
        self.assertIn(short.name, text)


    def test_faults_for_programs(self):
        path = self.checkpoint()
        told = json.loads(cairn("verify", path, "--json").stdout)
        self.assertEqual((told["fine"], told["faults"]), (True, []))
        file = next(path.glob("*.distcp"))
        content = bytearray(file.read_bytes())
        content[70000] ^= 1
        file.write_bytes(content)
        done = cairn("verify", path, "--json")
        self.assertEqual(done.returncode, FOUND_BAD)
        (fault,) = json.loads(done.stdout)["faults"]
        self.assertEqual(fault["file"], file.name)
        self.assertLessEqual(fault["offset"], 70000)


class Cat(Command):
    def shown(self, *arguments):
        done = cairn("cat", *arguments)
        self.assertEqual(done.returncode, FINE, done.stderr)
        return done.stdout

    def values(self, *arguments):
        return json.loads(self.shown(*arguments, "--json"))["values"]

    def test_a_tensor_and_its_parts(self):
        path = self.checkpoint()
        self.assertEqual(self.shown(path, "model.weight"), "model.weight float32 [3, 4]\n[[ 0.0,  1.0,  2.0,  3.0],\n"
                         " [ 4.0,  5.0,  6.0,  7.0],\n [ 8.0,  9.0, 10.0, 11.0]]\n")
        for text, expected in (("1", [4, 5, 6, 7]), ("-1,0", 8), (":2,1:3", [[1, 2], [5, 6]]), ("...,-1", [3, 7, 11]),
                               ("2:,:", [[8, 9, 10, 11]]), ("5:,:", []), ("1:-1", [[4, 5, 6, 7]])):
            self.assertEqual(self.values(path, "model.weight", "--slice", text), expected, text)
        self.assertEqual(self.values(path, "model.transposed", "--slice", "1"), [1, 4])
        self.assertEqual(self.values(path, "model.count"), 41)
        self.assertEqual(self.values(path, "model.flags"), [True, False, True])
        self.assertEqual(self.values(path, "model.empty"), [])

    def test_parts_that_lie_on_several_ranks(self):
        self.assertEqual(self.values(self.checkpoint("--grid"), "grid", "--slice", "2:4,3:5"), [[19, 20], [27, 28]])

    def test_of_many_elements_the_ends_are_shown(self):
        path = self.checkpoint()
        self.assertEqual(self.shown(path, "large").splitlines()[1], "[    0,     1,     2, ..., 69997, 69998, 69999]")
        self.assertEqual(self.shown(path, "large", "--full").count(","), 69999)

    def test_what_is_not_asked_for_is_not_read(self):
        path = self.checkpoint()
        file = next(path.glob("*.distcp"))
        content = bytearray(file.read_bytes())
        content[200_000] ^= 1  # in the middle of `large`
        file.write_bytes(content)
        self.assertEqual(self.values(path, "large", "--slice", "5:7"), [5, 6])
        self.fails(FOUND_BAD, "cat", path, "large", "--full", text="large")

    def test_numbers_that_json_lacks(self):
        path = self.checkpoint("--set", "weight,0,nan", "--set", "weight,1,-inf", "--complex")
        self.assertEqual(self.values(path, "model.weight", "--slice", "0,:3"), ["nan", "-inf", 2])
        self.assertEqual(self.values(path, "complex"), [[0, 0], [0, 0]])

    def test_values(self):
        path = self.checkpoint()
        self.assertEqual(self.shown(path, "step"), "step is an int\n7\n")
        self.assertEqual(self.shown(path, "name"), "name is a str\n'grün'\n")
        self.fails(WRONG_USE, "cat", path, "step", "--slice", "0", text="no tensor")

    def test_checkpoints_of_pytorch(self):
        for name in ("fsdp_uneven", "nested"):
            expected, _, _ = read_safetensors(FIXTURES / name / "expected.safetensors")
            for key, (dtype, shape, data) in expected.items():
                if dtype != "F32" or len(shape) != 2 or shape[0] < 3:
                    continue
                row = struct.unpack_from(f"<{shape[1]}f", data, 2 * 4 * shape[1])
                shown = self.values(FIXTURES / name, key, "--slice", "2")
                self.assertEqual([struct.pack("<f", number) for number in shown], [struct.pack("<f", number) for number in row], key)

    def test_wrong_use(self):
        path = self.checkpoint()
        self.fails(WRONG_USE, "cat", path, "model.wieght", text='the closest are "model.weight"')
        for text, why in (("7", "outside"), ("a", "no number"), ("0:4:2", "steps"), ("0,0,0", "dimensions"), ("...,...", "twice")):
            self.fails(WRONG_USE, "cat", path, "model.weight", "--slice", text, text=why)


class Diff(Command):
    def differences(self, *arguments, code=FOUND_BAD):
        done = cairn("diff", *arguments, "--json")
        self.assertEqual(done.returncode, code, done.stderr)
        told = json.loads(done.stdout)
        self.assertEqual(told["equal"], code == FINE)
        return {entry["key"]: entry for entry in told["differences"]}

    def test_equal_ones(self):
        path = self.checkpoint("--set", "weight,3,nan", "--set", "weight,4,inf")
        self.assertEqual(self.differences(path, self.checkpoint("--set", "weight,3,nan", "--set", "weight,4,inf", name="b"), code=FINE), {})
        self.assertIn("no difference", cairn("diff", path, path).stdout)

    def test_elements_that_differ(self):
        a = self.checkpoint("--set", "bias,0,nan")
        b = self.checkpoint("--set", "weight,5,7.5", "--set", "weight,10,9", "--set", "bias,0,nan", "--set", "bias,3,nan", name="b")
        for memory in ("1", "1MiB"):  # in pieces of one element, and at once
            found = self.differences(a, b, "--memory", memory)
            self.assertEqual(list(found), ["model.weight", "model.bias"])
            weight = found["model.weight"]
            self.assertEqual((weight["elements"], weight["different"], weight["one_nan"], weight["max"], weight["first"]),
                             (12, 2, 0, 2.5, [1, 1]))
            self.assertAlmostEqual(weight["mean"], 3.5 / 12)
            bias = found["model.bias"]
            self.assertEqual((bias["different"], bias["one_nan"], bias["max"], bias["first"], bias["b"]), (1, 1, 0, [3], "nan"))
        self.assertIn("first at [1, 1]: 5.0 / 7.5", cairn("diff", a, b).stdout)

    def test_a_tolerance(self):
        a, b = self.checkpoint(), self.checkpoint("--set", "weight,5,5.5", name="b")
        self.differences(a, b, "--tolerance", "0.5", code=FINE)
        self.assertEqual(list(self.differences(a, b, "--tolerance", "0.4")), ["model.weight"])
        nan = self.checkpoint("--set", "weight,5,nan", name="nan")
        self.assertEqual(list(self.differences(a, nan, "--tolerance", "1e9")), ["model.weight"])

    def test_keys_and_values(self):
        a, b = self.checkpoint("--complex"), self.checkpoint("--step", "8", name="b")
        found = self.differences(a, b)
        self.assertEqual({key: entry["what"] for key, entry in found.items()}, {"complex": "only_a", "step": "value"})
        self.assertEqual((found["step"]["a"], found["step"]["b"]), ("7", "8"))
        self.assertEqual({key: entry["what"] for key, entry in self.differences(b, a).items()}, {"complex": "only_b", "step": "value"})
        self.differences(a, b, "--tensors", "model.*", code=FINE)
        self.fails(WRONG_USE, "diff", a, b, "--tensors", "x*", text="no key")

    def test_shapes_of_pytorchs_checkpoints(self):
        found = self.differences(FIXTURES / "fsdp_even", FIXTURES / "fsdp_uneven")
        self.assertEqual(found["model.norm.weight"]["what"], "shape")
        self.differences(FIXTURES / "hsdp_2x2", FIXTURES / "hsdp_2x2", "--memory", "100", code=FINE)

    def test_damage_is_no_equality(self):
        source = self.fixture("threads")
        file = source / "__1_0.distcp"
        content = bytearray(file.read_bytes())
        _, shape, elements = read_safetensors(source / "expected.safetensors")[0]["t0"]
        quarter = len(elements) // 4  # which is what this rank wrote
        content[content.index(elements[quarter:2 * quarter])] ^= 1
        file.write_bytes(content)
        for memory in ("100", "1MiB"):
            whats = [entry["what"] for entry in self.differences(source, FIXTURES / "threads", "--memory", memory).values()]
            self.assertIn("unreadable", whats)


class Convert(Command):
    def convert(self, source, *options, code=FINE):
        target = self.root / "out.safetensors"
        done = cairn("convert", source, target, "--to", "safetensors", *options)
        self.assertEqual(done.returncode, code, done.stderr)
        leftovers = [path.name for path in self.root.iterdir() if "partial" in path.name]
        self.assertEqual(leftovers, [])
        return target, done

    def test_pytorch_checkpoints_give_the_tensors_that_pytorch_gives(self):
        for name in ("single", "threads", "fsdp_even", "fsdp_uneven", "hsdp_2x2", "nested"):
            target, _ = self.convert(FIXTURES / name, "--force", "--skip-unsupported")
            expected, _, _ = read_safetensors(FIXTURES / name / "expected.safetensors")
            self.assertEqual(read_safetensors(target)[0], expected, name)

    def test_a_checkpoint_of_ours(self):
        target, done = self.convert(self.checkpoint())
        tensors, metadata, order = read_safetensors(target)
        self.assertEqual(struct.unpack("<Q", target.read_bytes()[:8])[0] % 8, 0, "the header is padded")
        self.assertEqual(tensors["model.weight"], ("F32", [3, 4], WEIGHT))
        self.assertEqual(tensors["model.count"], ("I64", [], struct.pack("<q", 41)))
        self.assertEqual(tensors["model.flags"], ("BOOL", [3], b"\1\0\1"))
        self.assertEqual(tensors["model.empty"], ("F32", [0, 4], b""))
        self.assertEqual(tensors["model.transposed"], ("F64", [3, 2], struct.pack("<6d", 0, 3, 1, 4, 2, 5)))
        self.assertEqual((metadata["format"], metadata["step"]), ("pt", "7"))
        sizes = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "BF16": 2, "BOOL": 1}
        ranks = [(-sizes[tensors[name][0]], name) for name in order]
        self.assertEqual(ranks, sorted(ranks), "by falling alignment, then by name")
        self.assertIn("step", done.stderr, "what is no tensor is named, not silently dropped")

    def test_an_existing_file_is_kept_unless_forced(self):
        source = self.checkpoint()
        (self.root / "out.safetensors").write_text("precious")
        target, done = self.convert(source, code=WRONG_USE)
        self.assertIn("--force", done.stderr)
        self.assertEqual(target.read_text(), "precious")
        self.convert(source, "--force")
        self.assertIn("model.weight", read_safetensors(target)[0])

    def test_what_the_format_cannot_hold_is_refused_by_name(self):
        source = self.checkpoint("--complex")
        target, done = self.convert(source, code=FOUND_BAD)
        self.assertIn("complex64", done.stderr)
        self.assertFalse(target.exists())
        target, done = self.convert(source, "--skip-unsupported")
        self.assertIn("complex", done.stderr)
        self.assertNotIn("complex", read_safetensors(target)[0])

    def test_damaged_data_gives_no_file(self):
        source = self.fixture("single")
        data = source / "__0_0.distcp"
        data.write_bytes(data.read_bytes()[:-400])
        target, _ = self.convert(source, code=FOUND_BAD)
        self.assertFalse(target.exists())

    def test_the_destination_must_be_a_file_in_an_existing_directory(self):
        source = self.checkpoint()
        self.fails(WRONG_USE, "convert", source, self.root / "no" / "out", "--to", "safetensors", text="no directory")
        self.fails(WRONG_USE, "convert", source, self.root, "--to", "safetensors", "--force", text="directory")
        self.fails(WRONG_USE, "convert", source, "mem://x/out", "--to", "safetensors", text="URL")
        self.fails(WRONG_USE, "convert", source, "", "--to", "safetensors", text="empty")

    def test_force_replaces_files_only(self):
        source = self.checkpoint()
        pipe = self.root / "pipe"
        os.mkfifo(pipe)
        self.fails(WRONG_USE, "convert", source, pipe, "--to", "safetensors", "--force", text="no regular file")
        self.assertTrue(pipe.is_fifo())
        self.assertEqual([path.name for path in self.root.iterdir() if "partial" in path.name], [])

    def test_a_file_that_may_not_grow_so_large_leaves_nothing(self):
        done = cairn("convert", self.checkpoint(), self.root / "out", "--to", "safetensors",
                     preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10)))
        self.assertEqual(done.returncode, FOUND_BAD, done.stderr)
        self.assertIn("ulimit -f", done.stderr)
        self.assertEqual([path.name for path in self.root.iterdir()], ["step_7"])


class ConvertTo(Command):
    """Other formats than safetensors, and what is changed on the way."""

    def convert(self, source, name, *options, code=FINE, **how):
        done = cairn("convert", source, self.root / name, *options, **how)
        self.assertEqual(done.returncode, code, done.stderr)
        return self.root / name, done

    def same(self, a, b, *options):
        done = cairn("diff", a, b, *options)
        self.assertEqual(done.returncode, FINE, done.stdout + done.stderr)

    def keys(self, path):
        return {entry["key"]: entry for entry in json.loads(cairn("inspect", path, "--json").stdout)["keys"]}

    def test_a_file_for_torch_load(self):
        source = self.checkpoint("--complex")
        file, _ = self.convert(source, "a.pt", "--to", "torch")
        self.same(source, file)
        with zipfile.ZipFile(file) as archive:
            self.assertIsNone(archive.testzip())
            pickle = archive.read("archive/data.pkl")
        names = {argument for opcode, argument, _ in pickletools.genops(pickle) if opcode.name == "GLOBAL"}
        self.assertTrue(names <= {"torch._utils _rebuild_tensor_v2", "collections OrderedDict"} | {
            name for name in names if name.startswith("torch ") and name.endswith("Storage")}, "what weights_only refuses")

    def test_a_file_of_torch_save_comes_back_as_a_checkpoint_of_any_layout(self):
        source = self.checkpoint()
        file, _ = self.convert(source, "a.pt", "--to", "torch")
        for world in (1, 3):
            target, _ = self.convert(file, f"over_{world}", "--to", "dcp", "--world", world)
            self.damaged(FINE, target)
            self.same(source, target)
            self.assertEqual(json.loads(cairn("inspect", target, "--json").stdout)["world_size"], world)
            self.assertEqual(len(self.keys(target)["large"]["chunks"]), world)
        paths = {key: entry["path"] for key, entry in self.keys(target).items()}
        self.assertEqual(paths, {key: entry["path"] for key, entry in self.keys(source).items()})

    def test_pytorchs_checkpoints_keep_their_layout_unless_told(self):
        for name in ("fsdp_uneven", "hsdp_2x2", "nested"):
            target, _ = self.convert(FIXTURES / name, name, "--to", "dcp", "--memory", "200")
            self.same(FIXTURES / name, target)
            self.damaged(FINE, target)
            told, before = (json.loads(cairn("inspect", path, "--json").stdout) for path in (target, FIXTURES / name))
            self.assertEqual([share["rank"] for share in told["ranks"]], [share["rank"] for share in before["ranks"]])
            self.convert(FIXTURES / name, name + ".pt", "--to", "torch", "--memory", "200")
            self.same(FIXTURES / name, self.root / (name + ".pt"), "--memory", "1000")

    def test_keys_are_chosen_and_renamed(self):
        source = self.checkpoint()
        options = ("--select", "model.*", "--select", "step", "--exclude", "*flags", "--rename", r"^model\.(w.*|bias)$=net.first.\1",
                   "--rename", "^model=rest")
        target, _ = self.convert(source, "chosen", "--to", "dcp", *options)
        keys = self.keys(target)
        self.assertEqual(list(keys), ["net.first.weight", "net.first.bias", "rest.count", "rest.transposed", "rest.empty", "step"])
        self.assertEqual(keys["net.first.weight"]["path"], ["net.first.weight"])
        nested, _ = self.convert(source, "nested", "--to", "dcp", "--rename", "weight=inner.weight")
        self.assertEqual(self.keys(nested)["model.inner.weight"]["path"], ["model", "inner.weight"])
        file, _ = self.convert(source, "chosen.pt", "--to", "torch", *options)
        self.same(target, file)

    def test_two_keys_must_not_become_one(self):
        target, done = self.convert(self.checkpoint(), "a.pt", "--to", "torch", "--rename", "weight=bias", code=WRONG_USE)
        self.assertIn('"model.weight" and "model.bias" would both become "model.bias"', done.stderr)
        self.assertFalse(target.exists())

    def test_a_cast_is_for_tensors_of_floating_point(self):
        source = self.checkpoint()
        target, _ = self.convert(source, "cast", "--to", "dcp", "--cast", "bfloat16")
        self.assertEqual({key: entry.get("dtype") for key, entry in self.keys(target).items()},
                         {"model.weight": "bfloat16", "model.bias": "bfloat16", "model.flags": "bool", "model.count": "int64",
                          "model.transposed": "bfloat16", "model.empty": "bfloat16", "large": "int32", "step": None, "name": None})
        told = json.loads(cairn("diff", source, target, "--json").stdout)
        self.assertEqual({entry["what"] for entry in told["differences"]}, {"dtype"}, "small whole numbers stay what they are")

    def test_wrong_use(self):
        source = self.checkpoint()
        for options, text in ((["--to", "torch", "--world", "2"], "--world is for"), (["--to", "dcp", "--cast", "int8"], "floating"),
                              (["--to", "dcp", "--rename", "abc"], "REGEX=REPL"), (["--to", "dcp", "--rename", "(=x"], "--rename"),
                              (["--to", "dcp", "--select", "x*"], "no key")):
            self.fails(WRONG_USE, "convert", source, self.root / "out", *options, text=text)
            self.assertFalse((self.root / "out").exists())
        self.fails(WRONG_USE, "convert", source, self.root / "no" / "out", "--to", "dcp", text="no directory")
        (self.root / "file").write_text("precious")
        self.fails(WRONG_USE, "convert", source, self.root / "file", "--to", "dcp", "--force", text="no directory")
        self.fails(WRONG_USE, "convert", source, source, "--to", "dcp", text="--force")
        self.fails(FOUND_BAD, "convert", self.root / "file", self.root / "out", "--to", "dcp", text="file")
        self.assertFalse((self.root / "out").exists())

    def test_force_replaces_a_checkpoint(self):
        source, other = self.checkpoint(), self.checkpoint("--step", "9", name="other")
        self.convert(source, "other", "--to", "dcp", "--force")
        self.same(source, other)

    def test_damaged_data_gives_nothing(self):
        source = self.fixture("single")
        data = source / "__0_0.distcp"
        data.write_bytes(data.read_bytes()[:-400])
        for name, format in (("a.pt", "torch"), ("a", "dcp")):
            self.convert(source, name, "--to", format, code=FOUND_BAD)
        self.assertEqual([path.name for path in self.root.iterdir()], ["single"])

    def interrupted(self, source, name, limit, *options):
        """A conversion whose files may not grow beyond `limit`, as one on a disk that fills up."""
        target, done = self.convert(source, name, *options, code=FOUND_BAD,
                                    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
        self.assertIn("The same command goes on", done.stderr)
        return target

    def test_an_interrupted_file_is_gone_on_with(self):
        source = self.checkpoint()
        for format in ("torch", "safetensors"):
            options = ("--to", format, "--memory", "16KiB")
            whole, _ = self.convert(source, "whole." + format, *options)
            target = self.interrupted(source, "part." + format, 150_000, *options)
            self.assertFalse(target.exists(), "nothing that looks whole")
            partial = pathlib.Path(f"{target}.cairn-partial")
            content = bytearray(partial.read_bytes())
            self.assertGreater(len(content), 100_000)
            content[100_000] ^= 0xFF  # to see that this part is not written again
            partial.write_bytes(content)
            _, done = self.convert(source, "part." + format, *options)
            self.assertIn("gone on from where it was interrupted", done.stdout)
            made = bytearray(target.read_bytes())
            made[100_000] ^= 0xFF
            self.assertEqual(made, whole.read_bytes())
            self.assertEqual([path.name for path in self.root.iterdir() if "partial" in path.name], [])

    def test_what_was_interrupted_is_not_mixed_with_another_conversion(self):
        source = self.checkpoint()
        options = ("--to", "torch", "--memory", "16KiB")
        self.interrupted(source, "a.pt", 150_000, *options)
        _, done = self.convert(source, "a.pt", *options, "--exclude", "model.flags")
        self.assertNotIn("gone on", done.stdout)
        self.same(source, self.root / "a.pt", "--tensors", "large", "--tensors", "model.weight")

    def test_an_interrupted_directory_is_gone_on_with(self):
        source = self.checkpoint()
        options = ("--to", "dcp", "--world", "3")
        whole, _ = self.convert(source, "whole", *options)
        sizes = sorted(path.stat().st_size for path in whole.glob("*.distcp"))
        target = self.interrupted(source, "part", sizes[-1] - 100, *options)
        self.assertEqual(cairn("verify", target).returncode, FOUND_BAD, "nothing that looks whole")
        written = {path.name: path.stat().st_mtime_ns for path in target.glob("*.distcp")}
        _, done = self.convert(source, "part", *options)
        self.assertIn("gone on from where it was interrupted", done.stdout)
        self.same(source, target)
        self.damaged(FINE, target)
        kept = [name for name, time in written.items() if (target / name).exists() and (target / name).stat().st_mtime_ns == time]
        self.assertEqual(len(kept), 2, "what the first run wrote is not written again")
        self.assertEqual(len(list(target.iterdir())), 4, "three files and the record")

    def test_only_one_converts_to_a_place(self):
        source = self.checkpoint()
        lock = self.root / "a.pt.cairn-partial.log"
        with open(lock, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self.fails(WRONG_USE, "convert", source, self.root / "a.pt", "--to", "torch", text="another conversion")


class Prune(Command):
    def setUp(self):
        super().setUp()
        for step, loss in ((10, 0.1), (20, 0.9), (30, 0.3), (40, 0.4)):
            self.checkpoint("--step", str(step), "--metadata", f"metric.loss={loss}", name=f"step_{step}")

    def prune(self, *options, code=FINE):
        done = cairn("prune", self.root, *options, stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def left(self):
        return sorted(path.name for path in self.root.iterdir())

    def test_what_stays(self):
        for keep, stays in ((["last=2"], [30, 40]), (["every=20"], [20, 40]), (["best=1:loss"], [10, 40]),
                            (["best=1:loss:higher", "last=1"], [20, 40]), (["last=9"], [10, 20, 30, 40])):
            text = self.prune("--dry-run", *(word for one in keep for word in ("--keep", one))).stdout
            rows = [line.split() for line in text.splitlines() if line.startswith(("stays", "goes"))]
            self.assertEqual(sorted(row[1] for row in rows if row[0] == "stays"), [f"step_{step}" for step in stays], keep)
            self.assertEqual(len(rows), 4)
        self.assertEqual(len(self.left()), 4, "only shown")

    def test_it_removes_what_it_shows_and_nothing_else(self):
        self.fixture("single")
        self.checkpoint(name="mine")
        (self.root / "step_10" / ".pinned").touch()
        (self.root / "notes.txt").write_text("precious")
        self.assertIn("2 checkpoints removed", self.prune("--keep", "last=1", "--yes").stdout)
        self.assertEqual(self.left(), ["mine", "notes.txt", "single", "step_10", "step_40"])

    def test_the_newest_that_is_sound_stays(self):
        next((self.root / "step_40").glob("*.distcp")).unlink()
        self.prune("--keep", "last=1", "--yes")
        self.assertEqual(self.left(), ["step_30", "step_40"])

    def test_it_asks_first(self):
        self.assertIn("--yes", self.prune("--keep", "last=1", code=WRONG_USE).stderr)
        for answer, left in (("n\n", 4), ("\n", 4), ("y\n", 1)):
            master, slave = pty.openpty()
            process = subprocess.Popen([CAIRN, "prune", self.root, "--keep", "last=1"], stdin=slave, stdout=subprocess.PIPE, text=True)
            os.write(master, answer.encode())
            self.assertIn("Remove them? [y/N]", process.communicate()[0])
            self.assertEqual(process.returncode, FINE)
            os.close(slave)
            os.close(master)
            self.assertEqual(len(self.left()), left, answer)

    def test_leftovers(self):
        (self.root / "step_20" / ".metadata").unlink()
        (self.root / "step_10" / ".metadata").unlink()
        (self.root / "step_10" / (".attempt-cairn-" + 32 * "0" + "-00000000-1")).mkdir()
        self.prune("--leftovers", "--yes")
        self.assertEqual(self.left(), ["step_10", "step_30", "step_40"], "a save may run in step_10")

    def test_what_cannot_be_removed_is_said(self):
        (self.root / "step_10" / (".attempt-cairn-" + 32 * "0" + "-00000000-1")).mkdir()
        done = self.prune("--keep", "last=1", "--yes", code=FOUND_BAD)
        self.assertIn("step_10 stays: a save to it has begun", done.stderr)
        self.assertEqual(self.left(), ["step_10", "step_40"])

    def test_wrong_use(self):
        for options in ([], ["--keep", "all"], ["--keep", "last=0"], ["--keep", "every=x"], ["--keep", "best=2"], ["--keep", "best=2:"]):
            self.prune(*options, "--yes", code=WRONG_USE)
        self.fails(WRONG_USE, "prune", self.root / "step_10", "--keep", "last=1", text="not a run")
        self.assertEqual(len(self.left()), 4)


class Doctor(Command):
    def checks(self, *arguments, code=FINE, **how):
        done = cairn("doctor", *arguments, "--json", **how)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        told = json.loads(done.stdout)
        return {check["name"]: check for check in told["checks"]}

    def test_the_machine_and_a_directory(self):
        checks = self.checks(self.root, "--test-size", "8MiB")
        for name in ("versions", "open files", "locked memory", "loopback", "io_uring", "clock", "directory", "file system", "free space",
                     "direct I/O", "write speed", "read speed", "fsync"):
            self.assertIn(name, checks)
            self.assertEqual(checks[name]["effect"] == "", checks[name]["health"] == "ok", name)
        self.assertRegex(checks["versions"]["found"], r"Cairn .*LibTorch .*NCCL .*CAF .*Protobuf ")
        self.assertRegex(checks["write speed"]["found"], r"iB/s, by 8\.0 MiB")
        self.assertEqual(list(self.root.iterdir()), [], "what it wrote is gone")
        text = cairn("doctor").stdout
        self.assertIn("ok       loopback", text)

    def test_limits_that_would_make_saves_fail(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        checks = self.checks(self.root, code=FOUND_BAD, preexec_fn=limit)
        self.assertEqual([checks[name]["health"] for name in ("open files", "file size", "writing")], 3 * ["problem"])
        self.assertIn("ulimit", checks["file size"]["effect"])
        self.assertEqual(list(self.root.iterdir()), [])

    def test_a_port_that_is_taken_and_one_that_is_none(self):
        with socket.create_server(("", 0)) as taken:
            environment = {**os.environ, "MASTER_PORT": str(taken.getsockname()[1])}
            self.assertEqual(self.checks(env=environment)["MASTER_PORT"]["health"], "warning")
        self.assertEqual(self.checks(env={**os.environ, "MASTER_PORT": "99999"}, code=FOUND_BAD)["MASTER_PORT"]["health"], "problem")

    def test_no_directory(self):
        self.assertEqual(self.checks(self.root / "nowhere", code=FOUND_BAD)["directory"]["health"], "problem")
        self.fails(WRONG_USE, "doctor", "mem://x", text="no directory of this machine")


if __name__ == "__main__":
    os.environ.pop("LD_PRELOAD", None)
    os.environ.pop("NO_COLOR", None)
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]], verbosity=2)
