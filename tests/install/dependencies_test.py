#!/usr/bin/env python3
"""Runs cmake/install_dependencies.sh as on other releases, with programs in the place of dpkg-query and apt that install nothing.

usage: dependencies_test.py SOURCE_DIRECTORY [BUILD_DIRECTORY]
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(sys.argv[1]).resolve()

# dpkg-query says that packages in HAVE are installed. apt-cache says that the release lacks those in ABSENT, and prints more than a pipe
# holds about the others. apt-get notes in LOG what it is asked to install.
PROGRAMS = {
    "dpkg-query": 'for package; do :; done; case " $HAVE " in *" $package "*|" all ") printf installed ;; *) exit 1 ;; esac',
    "apt-cache": 'case " $ABSENT " in *" $2 "*) echo "  Candidate: (none)" ;; *) echo "  Candidate: 1.2-3"; seq 20000 ;; esac',
    "apt-get": 'if [ "$1" = install ]; then echo "$@" > "$LOG"; fi',
    "id": "echo 0",
}


class Dependencies(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="cairn_dependencies_")
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        for name, text in PROGRAMS.items():
            (self.root / name).write_text(f"#!/bin/sh\n{text}\n")
            (self.root / name).chmod(0o755)

    def install(self, *options, have="", absent=""):
        """The finished script, and the packages that it had installed."""
        log = self.root / "log"
        log.write_text("")
        done = subprocess.run([SOURCE / "cmake/install_dependencies.sh", *options], capture_output=True, text=True,
                              env={**os.environ, "PATH": f"{self.root}:{os.environ['PATH']}", "HAVE": have, "ABSENT": absent, "LOG": str(log)})
        return done, {word for word in log.read_text().split()[1:] if not word.startswith("-")}

    def test_what_is_missing_is_installed(self):
        done, installed = self.install(have="cmake libtorch-dev")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertLess({"g++", "libcaf-dev", "libgloo-dev", "protobuf-compiler", "doctest-dev"}, installed)
        self.assertFalse({"cmake", "libtorch-dev", "mpich"} & installed)

    def test_nothing_is_done_if_nothing_is_missing(self):
        done, installed = self.install("--tests", have="all")
        self.assertEqual((done.returncode, installed), (0, set()))

    def test_a_machine_with_another_libtorch_gets_none_from_the_system(self):
        done, installed = self.install("--without-torch", "--tests")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertLess({"libcaf-dev", "libgloo-dev", "mpich"}, installed)
        self.assertFalse({"libtorch-dev", "python3-torch"} & installed)

    def test_a_release_without_libtorch_is_told_where_to_get_it(self):
        done, installed = self.install("--tests", absent="libtorch-dev python3-torch libgloo-dev chromium-headless-shell")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, "no libtorch-dev: install PyTorch's Python package, or unpack LibTorch's archive")
        self.assertRegex(done.stdout, "no libgloo-dev: .*CAIRN_WITH_TRAINING=OFF")
        self.assertRegex(done.stdout, "no chromium-headless-shell: tests that use it are skipped")
        self.assertIn("libcaf-dev", installed)
        self.assertFalse({"libtorch-dev", "libgloo-dev", "chromium-headless-shell"} & installed)

    def test_a_release_without_a_library_that_cairn_needs_fails(self):
        done, installed = self.install("--tests", absent="libcaf-dev")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("no libcaf-dev, without which Cairn cannot be built", done.stderr)
        self.assertEqual(installed, set())

    def test_an_unknown_option_is_refused(self):
        done, installed = self.install("--test")
        self.assertEqual((done.returncode, installed), (2, set()))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
