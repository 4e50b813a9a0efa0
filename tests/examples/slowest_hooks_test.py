#!/usr/bin/env python3
"""The analysis in docs/tracing.md, on what the example trainer records.

usage: slowest_hooks_test.py SLOWEST_HOOKS CHAR_LM LAUNCHER
"""

import os
import re
import subprocess
import sys
import tempfile
import unittest

SLOWEST_HOOKS, CHAR_LM, LAUNCHER = (os.path.abspath(path) for path in sys.argv[1:4])


class SlowestHooks(unittest.TestCase):
    def test_ten_hooks_of_all_saves_the_slowest_first(self):
        with tempfile.TemporaryDirectory() as root:
            traces = os.path.join(root, "traces")
            launched = subprocess.run([LAUNCHER, "-n", "2", "--trace", traces, "--inject", "delay=4s@hook:finish,nth=2", "--", CHAR_LM,
                                       "--allow-injection", "--steps", "2", "--save-every", "1", "--dir", os.path.join(root, "run")],
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            self.assertEqual(launched.returncode, 0, launched.stdout)
            told = subprocess.run([SLOWEST_HOOKS, traces], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True).stdout
            lines = told.splitlines()
            self.assertEqual(len(lines), 10, told)
            seconds = [float(line.split()[0]) for line in lines]
            self.assertEqual(seconds, sorted(seconds, reverse=True))
            self.assertRegex(lines[0], r"finish of rank 0, save of '.*/step_2'")

            # The trainer's manager agrees with the other ranks before each save. The command lists that only when asked.
            def listed(*options):
                command = [os.path.join(os.path.dirname(LAUNCHER), "cairn"), "trace", "list", traces, *options]
                return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
            *saves, hidden = listed()
            self.assertEqual([line.split()[0] for line in saves], ["save:1", "save:2"])
            self.assertRegex(hidden, r"^[1-9]\d* internal agreements? not shown: --all$")
            self.assertEqual(len(listed("--all")), len(saves) + int(hidden.split()[0]))

    def test_nothing_to_read_is_said(self):
        told = subprocess.run([SLOWEST_HOOKS, "/nonexistent"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertEqual(told.returncode, 1)
        self.assertIn("/nonexistent", told.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
