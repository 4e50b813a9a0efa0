#!/usr/bin/env python3
"""How the command is used, whichever it is, and what is written about it. Started as cairn_command.py says."""

import json
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess

from cairn_command import CAIRN, cairn, Command, FINE, FOUND_BAD, NOT_CHECKED, read_safetensors, run_tests, without_rights, WRONG_USE
from terminal import on_terminal


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

    def test_a_mistyped_command_is_named_with_the_closest_one(self):
        for typed, meant in (("verfy", "verify"), ("insepct", "inspect"), ("tarce", "trace"), ("trace exlain", "explain")):
            self.fails(WRONG_USE, *typed.split(), "x", text=f'there is no command "{typed}": the closest is "{meant}"')

    def test_files_are_read_by_every_command_that_reads_checkpoints(self):
        checkpoint = self.checkpoint()
        for kind, verdict in (("safetensors", NOT_CHECKED), ("torch", FINE)):
            path = self.root / kind
            self.assertEqual(cairn("convert", checkpoint, path, "--to", kind, "--skip-unsupported").returncode, FINE)
            self.assertRegex(cairn("inspect", path).stdout, r"weight +float32 +\[3, 4\]")
            self.assertIn("[ 0.0,  1.0,  2.0,  3.0]", cairn("cat", path, "model.weight").stdout)
            self.assertEqual(cairn("diff", path, checkpoint, "--tensors", "model.*").returncode, FINE)
            self.assertEqual(cairn("verify", path).returncode, verdict)
            for target in ("torch", "dcp"):
                copy = self.root / f"{kind}_as_{target}"
                self.assertEqual(cairn("convert", path, copy, "--to", target).returncode, FINE)
                self.assertEqual(cairn("diff", path, copy).returncode, FINE)

    def test_a_directory_of_safetensors_files_is_read_as_its_index_says(self):
        whole = self.checkpoint()
        shards = self.root / "shards"
        shards.mkdir()
        for name in ("weight", "bias"):
            cairn("convert", whole, shards / f"{name}.safetensors", "--to", "safetensors", "--select", f"model.{name}")
        self.assertEqual(cairn("diff", shards, whole, "--tensors", "model.[wb]*").returncode, FINE)
        (shards / "copy.safetensors").write_bytes((shards / "bias.safetensors").read_bytes())
        self.fails(FOUND_BAD, "inspect", shards, text='"model.bias" is in two files')
        index = shards / "model.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": {"model.weight": "weight.safetensors", "model.bias": "bias.safetensors"}}))
        for place in (shards, index):
            self.assertIn("tensors      2", cairn("inspect", place).stdout)
        index.write_text(json.dumps({"weight_map": {"model.weight": "gone.safetensors"}}))
        self.fails(FOUND_BAD, "cat", shards, "model.weight", text="gone.safetensors")
        index.write_text(json.dumps({"weight_map": {"model.weight": "weight.safetensors", "other": "weight.safetensors"}}))
        lacking = 'lacks "other", which the index says is there'
        self.fails(FOUND_BAD, "inspect", shards, text=lacking)
        verified = cairn("verify", shards)
        self.assertEqual(verified.returncode, FOUND_BAD)
        self.assertIn(lacking, verified.stdout)
        for hostile, why in (('{"weight_map":' + "[" * 300000, "nested too deeply"), ('{"weight_map": {}}', "names no files"), ("x", "is not an index")):
            index.write_text(hostile)
            self.fails(FOUND_BAD, "inspect", shards, text=why)
        (shards / "model.fp16.safetensors.index.json").write_text("{}")
        self.assertEqual(cairn("inspect", shards / "model.fp16.safetensors.index.json").returncode, FOUND_BAD)
        index.rename(shards / "other.safetensors.index.json")
        self.fails(FOUND_BAD, "inspect", shards, text="several indexes")

    def test_a_directory_of_safetensors_files_that_may_lack_some_is_refused(self):
        shards = self.root / "shards"
        shards.mkdir()
        cairn("convert", self.checkpoint(), shards / "model-00001-of-00002.safetensors", "--to", "safetensors", "--select", "model.*")
        for command in (["inspect", shards], ["verify", shards], ["cat", shards, "model.bias"]):
            self.fails(FOUND_BAD, *command, text="lacks model-00002-of-00002.safetensors")
        (shards / "model-00001-of-00002.safetensors").rename(shards / "model.safetensors")
        self.assertEqual(cairn("inspect", shards).returncode, FINE)
        (shards / ".attempt-x").mkdir()
        self.fails(FOUND_BAD, "inspect", shards, text="a save to this place is under way, or died")

    def test_the_parts_in_distributed_safetensors_files_are_joined(self):
        parts = self.root / "parts"
        parts.mkdir()
        for rank, values in enumerate(((0, 1, 2), (3, 4))):
            entry = {"dtype": "F32", "shape": [len(values)], "data_offsets": [0, 4 * len(values)]}
            sharding = json.dumps({"w": {"saved_offsets": [3 * rank]}})
            header = json.dumps({"__metadata__": {"DCP_SHARDING_INFO": sharding}, "w": entry}).encode()
            (parts / f"shard-0000{rank + 1}-model-00001-of-00001.safetensors").write_bytes(
                struct.pack("<Q", len(header)) + header + struct.pack(f"<{len(values)}f", *values))
        self.assertIn("[0.0, 1.0, 2.0, 3.0, 4.0]", cairn("cat", parts, "w").stdout.replace(" 0.0", "0.0"))
        joined = self.root / "joined.safetensors"
        self.assertEqual(cairn("convert", parts, joined, "--to", "safetensors").returncode, FINE)
        self.assertEqual(read_safetensors(joined)[0]["w"][-1], struct.pack("<5f", 0, 1, 2, 3, 4))
        (parts / "shard-00001-model-00001-of-00001.safetensors").unlink()
        self.fails(FOUND_BAD, "inspect", parts, text="'w' lacks data in [0:3]")

    def test_a_pipe_named_like_a_file_of_tensors_is_not_waited_for(self):
        shards = self.root / "shards"
        shards.mkdir()
        os.mkfifo(shards / "a.safetensors")
        self.fails(WRONG_USE, "inspect", shards, text="no checkpoint")
        (shards / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": "a.safetensors"}}))
        self.fails(FOUND_BAD, "inspect", shards, text="is not a regular file")

    def test_help_and_version(self):
        self.assertIn("Examples:", cairn("--help").stdout)
        self.assertEqual(cairn("--help").returncode, FINE)
        self.assertRegex(cairn("--version").stdout, r"^cairn \d+\.\d+\.\d+\nLibTorch \d+\.\d+\nNCCL (none|[\d.]+)\nCAF [\d.]+\nProtobuf [\d.]+\n")

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
        self.root.chmod(0o755)
        (path / ".metadata").chmod(0)
        try:
            done = self.fails(FOUND_BAD, "inspect", path, text="ermission", preexec_fn=without_rights)
        except PermissionError:
            self.skipTest("only its owner may start cairn here")
        self.assertEqual(len(done.stderr.splitlines()), 1)

    def test_lines_break_between_words_where_the_terminal_ends(self):
        path = self.checkpoint()
        for command in (("ls", self.root), ("inspect", path), ("inspect", path, "--chunks"), ("verify", path),
                        ("diff", path, path)):
            text = re.sub(r"\033\[\d+m", "", on_terminal(CAIRN, *command, columns=72).replace("\r\n", "\n"))
            self.assertLessEqual(max(map(len, text.splitlines())), 72, text)
            age = r"\d+ s"
            self.assertEqual(re.sub(age, "", " ".join(text.split())), re.sub(age, "", " ".join(cairn(*command).stdout.split())))
        for command in (path.split() + ["--help"] for path, _ in Documentation.helps()):
            text = re.sub(r"\033\[\d+m", "", on_terminal(CAIRN, *command, columns=80).replace("\r\n", "\n"))
            self.assertEqual([line for line in text.splitlines() if len(line) > 80], [], command)

    def test_colours_are_for_terminals_that_want_them(self):
        path = self.checkpoint()
        self.assertIn("\033[32m", on_terminal(CAIRN, "verify", path))
        self.assertNotIn("\033", on_terminal(CAIRN, "verify", path, NO_COLOR="1"))
        self.assertNotIn("\033", on_terminal(CAIRN, "verify", path, TERM="dumb"))


class Documentation(Command):
    """The manual page and the completions know what the command line knows."""

    tools = pathlib.Path(__file__).parents[2] / "tools"
    page = (tools / "cairn.1").read_text()

    @staticmethod
    def helps(*path):
        """Each command with what --help tells."""
        text = cairn(*path, "--help").stdout
        yield " ".join(path), text
        below = re.search(r"^Subcommands:\n((?:  .*\n)+)", text, re.MULTILINE)
        for name in re.findall(r"^  (\S+)", below.group(1), re.MULTILINE) if below else []:
            yield from Documentation.helps(*path, name)

    @staticmethod
    def options(text):
        options = re.search(r"^Options:\n((?:  .*\n)+)", text, re.MULTILINE)
        # Descriptions begin after two spaces or on a line of their own.
        heads = [line.strip().split("  ")[0] for line in options.group(1).splitlines() if re.match(r"  -", line)]
        return [name for head in heads for name in re.findall(r"(?<![\w-])--?\w[\w-]*", head)]

    def test_every_command_has_examples_and_all_are_in_manual_and_completions(self):
        manual = self.page.replace("\\-", "-")
        seen = dict(self.helps())
        self.assertLessEqual({"ls", "inspect", "verify", "diff", "cat", "convert", "prune", "doctor", "trace", "trace explain"}, set(seen))
        for command, text in seen.items():
            if command:
                examples = text.split("Examples:\n")[1]
                self.assertIn(f"cairn {command} ", examples)
                if " " in command:
                    self.assertEqual(re.findall(r"^  cairn (trace \S+)", examples, re.MULTILINE), [command] * (examples.count("\n") - 1))
        for command in ("", "convert", "trace", "trace explain"):
            self.assertLessEqual(set(self.options(seen[command])), set(self.completed("cairn", *command.split(), "-")), command)
        self.assertEqual(re.findall(r"^\.B cairn (\S.*)\n(.*)$", manual, re.MULTILINE),
                         [(command, text.splitlines()[0]) for command, text in seen.items() if command])
        codes = re.findall(r"^\.TP\n(\d+)\n(.*)$", manual, re.MULTILINE)
        self.assertIn("Exit codes: " + "; ".join(map(" ".join, codes)) + ".", seen[""])

    def completed(self, *words):
        script = f"source {self.tools}/completion/cairn; COMP_WORDS=({' '.join(map(repr, words))}); COMP_CWORD={len(words) - 1}; " \
                 "_cairn_words; printf '%s\\n' \"${COMPREPLY[@]}\""
        environment = {**os.environ, "PATH": os.pathsep.join([os.path.dirname(os.path.abspath(CAIRN)), os.environ["PATH"]])}
        return subprocess.run(["bash", "-c", script], check=True, capture_output=True, text=True, cwd=self.root, env=environment).stdout.split()

    def test_bash_completes(self):
        (self.root / "insight").touch()
        self.assertEqual(self.completed("cairn", "ins"), ["inspect"])
        self.assertEqual(self.completed("cairn", "convert", "a", "b", "--to", "d"), ["dcp"])
        self.assertEqual(self.completed("cairn", "inspect", "--ch"), ["--chunks"])
        self.assertEqual(self.completed("cairn", "inspect", "ins"), ["insight"])
        self.assertIn("explain", self.completed("cairn", "trace", "ex"))
        self.assertIn("--rank", self.completed("cairn", "trace", "explain", "run", "--r"))

    def test_the_manual_is_formatted_without_complaint(self):
        if shutil.which("groff") is None:
            self.skipTest("there is no groff")
        done = subprocess.run(["groff", "-man", "-Tutf8", "-Kutf8", "-ww"], input=self.page, capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("EXIT STATUS", re.sub(".\b", "", done.stdout))  # letters that are struck twice are bold


if __name__ == "__main__":
    run_tests()
