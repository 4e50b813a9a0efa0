#!/usr/bin/env python3
"""`cairn doctor` from outside. Started as cairn_command.py says."""

import contextlib
import json
import os
import resource
import socket
import subprocess

from cairn_command import CAIRN, cairn, Command, FINE, FOUND_BAD, run_tests, WRONG_USE


class Doctor(Command):
    def checks(self, *arguments, code=FINE, **how):
        done = cairn("doctor", *arguments, "--json", **how)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        told = json.loads(done.stdout)
        return {check["name"]: check for check in told["checks"]}

    def test_the_machine_and_a_directory(self):
        checks = self.checks(self.root, "--test-size", "8MiB")
        for name in ("versions", "open files", "locked memory", "loopback", "clock", "directory", "file system", "free space",
                     "direct I/O", "write speed", "fsync"):
            self.assertIn(name, checks)
            self.assertEqual(checks[name]["effect"] == "", checks[name]["health"] == "ok", name)
        self.assertRegex(checks["versions"]["found"], r"Cairn .*LibTorch .*NCCL .*CAF .*Protobuf ")
        self.assertRegex(checks["write speed"]["found"], r"iB/s, by 8\.0 MiB")
        self.assertEqual(list(self.root.iterdir()), [], "what it wrote is gone")
        text = cairn("doctor").stdout
        self.assertIn("ok       loopback", text)

    def test_what_it_measures_with_goes_with_it(self):
        process = subprocess.Popen([CAIRN, "doctor", self.root, "--test-size", "256MiB"], stdout=subprocess.DEVNULL)
        seen = 0
        while process.poll() is None:
            for path in self.root.iterdir():
                with contextlib.suppress(FileNotFoundError):
                    seen = max(seen, path.stat().st_size)
        self.assertLessEqual(seen, 4096, "a signal that ends it would leave this")

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
    run_tests()
