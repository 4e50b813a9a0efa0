#!/usr/bin/env python3
"""Runs the commands of README.md and docs/ as they stand there, in an empty folder with a run, and fails if one fails.

usage: documents_test.py BIN MAKE_CHECKPOINT [unittest arguments]      BIN: the folder with cairn, cairn-launch and char_lm

A block of commands that does not run here has a line before it that says who runs it, or why nobody does:

    <!-- run by the test NAME -->      NAME: of CTest
    <!-- not run: REASON -->
"""

import os
import pathlib
import pty
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
NOT_RUN_MAX = 6  # blocks; may only become fewer
PATIENCE = 300  # seconds of one command; only a hang meets it

BLOCK = re.compile(r"^(?:<!-- (run by the test|not run:) (.+?) -->\n+)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(?:[A-Z]+=\S*|/?(?:[\w.-]+/)+[\w.-]+|cairn|cairn-launch|cmake|ctest|curl|export|apt-get|openssl|c\+\+|sleep|pkill) ")
FAILS = "--inject"  # such a command may end with any code


class Block:
    def __init__(self, path, match):
        mark, self.what, language, self.text = match.groups()
        self.is_run_by, self.is_not_run = mark == "run by the test", mark == "not run:"
        self.name = "%s: %s" % (path.relative_to(ROOT), self.text.splitlines()[0][:60])
        lines = self.text.splitlines()
        if any(line.startswith("$ ") for line in lines):
            lines = [line[2:] for line in lines if line.startswith("$ ")]  # the others are what it prints
        self.commands = [line for line in lines if line] if language == "" and COMMAND.match(lines[0] + " ") else []


def blocks():
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for match in BLOCK.finditer(path.read_text()):
            block = Block(path, match)
            if block.commands:
                yield block


class Documents(unittest.TestCase):
    def prepare(self):
        """Makes the folder with what the documents speak of."""
        directory = tempfile.TemporaryDirectory(prefix="cairn_documents_")
        self.addCleanup(directory.cleanup)
        self.folder = pathlib.Path(directory.name)
        self.environment = {**os.environ, "HOME": str(self.folder), "OMP_NUM_THREADS": "1",
                            "PATH": os.pathsep.join([str(self.folder), BIN, os.environ["PATH"]])}
        trainer = self.folder / "trainer"
        trainer.write_text('#!/bin/sh\n[ $# -gt 0 ] || set -- --steps 20\nexec char_lm --allow-injection --dir trained --save-every 5 "$@"\n')
        trainer.chmod(0o755)
        # A run with three checkpoints, and with the report of a save that failed.
        self.shell("cairn-launch -n 4 --trace traces --inject 'kill@hook:write_data,rank=2,nth=2' -- "
                   "char_lm --allow-injection --steps 10 --save-every 5 --dir run")
        for step in (7, 100, 200):
            self.make("run/step_%d" % step, "--step", str(step), "--metadata", "metric.loss=0.5")
        self.make("parts", "--parts")

    def make(self, *arguments):
        subprocess.run([MAKE_CHECKPOINT, *arguments], cwd=self.folder, check=True)

    def shell(self, command):
        """Runs a command in a terminal, and answers yes."""
        master, slave = pty.openpty()
        os.write(master, b"y\n")
        try:
            return subprocess.run(["bash", "-c", command], cwd=self.folder, env=self.environment, stdin=slave, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, timeout=PATIENCE)
        finally:
            os.close(slave)
            os.close(master)

    def test_commands_that_are_copied_from_the_documents_work(self):
        self.prepare()
        ran = 0
        for block in blocks():
            if block.is_run_by or block.is_not_run:
                continue
            for command in block.commands:
                with self.subTest(block.name, command=command):
                    done = self.shell(command)
                    ran += 1
                    if FAILS in command:
                        self.assertIn("[cairn]" if "--keep-going" in command else "cairn-launch:", done.stdout)
                    else:
                        self.assertIn(done.returncode, (0, 1) if command.startswith("cairn diff ") else (0,), done.stdout)
        self.assertGreater(ran, 20)

    def test_those_that_do_not_run_here_are_counted_and_have_a_reason(self):
        listed = subprocess.run(["ctest", "--test-dir", os.path.dirname(BIN), "-N"], stdout=subprocess.PIPE, text=True, check=True)
        tests = re.findall(r"Test +#\d+: (\S+)", listed.stdout)
        not_run = []
        for block in blocks():
            if block.is_run_by:
                self.assertIn(block.what, tests, block.name)
            if block.is_not_run:
                not_run.append("%s: %s" % (block.name, block.what))
        print("not run by any test:", *not_run, sep="\n  ")
        self.assertLessEqual(len(not_run), NOT_RUN_MAX)


if __name__ == "__main__":
    BIN, MAKE_CHECKPOINT = (os.path.abspath(path) for path in sys.argv[1:3])
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
