#!/usr/bin/env python3
"""`cairn convert` within the bounds of disk, memory and time, and what it leaves when it is ended. Started as cairn_command.py says."""

import ctypes
import os
import pathlib
import resource
import shutil
import signal
import subprocess

import hostile_files
import torch_file
from cairn_command import CAIRN, cairn, Command, FINE, FOUND_BAD, run_tests, WRONG_USE

FORMATS = ("safetensors", "torch", "dcp")
CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 0x40000


def expanded(path, elements):
    """A small file with a tensor of so many elements, which are one element in the file."""
    hostile_files.of_pickle(hostile_files.state(large=hostile_files.tensor(sizes=(elements,), strides=(0,))))(path)
    return path


class ConvertBounds(Command):
    def left(self):
        return sorted(path.name for path in self.root.iterdir())

    def test_more_than_fits_is_refused_before_it_is_written(self):
        for elements, text in ((2**50, "are free at"), (2**61, "too large to count"), (2**62, "too large to count"), (2**63 - 1, "too large")):
            source = expanded(self.root / "a.pt", elements)
            self.assertLess(source.stat().st_size, 1000)
            for kind in FORMATS:
                done = cairn("convert", source, self.root / "out", "--to", kind,
                             preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)))
                self.assertEqual(done.returncode, FOUND_BAD, done.stderr)
                self.assertIn(text, done.stderr)
                self.assertEqual(self.left(), ["a.pt"])

    def test_a_small_disk_is_asked_before_it_is_filled(self):
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(CLONE_NEWNS) != 0 or libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) != 0:
            self.skipTest("needs the right to mount")
        disk, source = self.root / "disk", self.checkpoint()
        disk.mkdir()
        self.assertEqual(libc.mount(b"tmpfs", os.fsencode(disk), b"tmpfs", 0, b"size=600k"), 0)
        self.addCleanup(libc.umount2, os.fsencode(disk), 2)
        for kind in FORMATS:
            (disk / "filling").write_bytes(bytes(400 << 10))
            self.fails(FOUND_BAD, "convert", source, disk / "out", "--to", kind, "--skip-unsupported", text="are free at")
            self.assertEqual([path.name for path in disk.iterdir()], ["filling"])
            (disk / "filling").unlink()
            self.fails(FOUND_BAD, "convert", source, disk / "out", "--to", kind, "--skip-unsupported", text="File too large",
                       preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000)))
            self.assertEqual(list(disk.iterdir()), [])

    def started(self, source, kind, **options):
        """A conversion that has begun to write, and takes long because it writes a few bytes at a time."""
        process = subprocess.Popen([CAIRN, "convert", source, self.root / "out", "--to", kind, "--memory", "16KiB"],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **options)
        self.addCleanup(process.stderr.close)
        partial = self.root / "out.cairn-partial"
        while not (partial.exists() and partial.stat().st_size > 0) and not list((self.root / "out").glob("*.distcp")):
            self.assertIsNone(process.poll(), "it must not end before it is interrupted")
            os.sched_yield()
        return process

    def test_a_signal_that_ends_it_leaves_nothing(self):
        source = expanded(self.root / "a.pt", 2**26)
        for number, kind in zip((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), FORMATS):
            process = self.started(source, kind)
            process.send_signal(number)
            error = process.stderr.read()
            self.assertEqual(process.wait(), -number, error)
            self.assertIn("interrupted", error)
            self.assertEqual(self.left(), ["a.pt"])

    def test_a_signal_that_was_ignored_stays_ignored(self):
        source = expanded(self.root / "a.pt", 2**20)
        process = self.started(source, "torch", preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        process.send_signal(signal.SIGHUP)
        error = process.stderr.read()
        self.assertEqual(process.wait(), FINE, error)
        self.assertEqual(self.left(), ["a.pt", "out"])

    def test_one_that_was_killed_starts_over_and_leaves_nothing(self):
        source, target = expanded(self.root / "a.pt", 2**26), self.root / "out"
        for kind in FORMATS:
            process = self.started(source, kind)
            process.kill()
            self.assertEqual(process.wait(), -signal.SIGKILL)
            self.assertFalse(target.is_file() or (target / ".metadata").exists(), "nothing that looks whole")
            done = cairn("convert", source, target, "--to", kind)
            self.assertEqual(done.returncode, FINE, done.stderr)
            self.assertIn("started over", done.stdout)
            self.assertEqual(self.left(), ["a.pt", "out"])
            self.assertEqual(cairn("diff", source, target).returncode, FINE)
            if kind == "dcp":
                self.assertEqual(len(list(target.iterdir())), 2, "one file and the record")
            self.assertNotIn("started over", cairn("convert", source, target, "--to", kind, "--force").stdout)
            (shutil.rmtree if kind == "dcp" else os.remove)(target)

    def test_an_empty_key_is_a_key(self):
        source = self.root / "a.pt"
        torch_file.save(source, {"": torch_file.Tensor("Float", [1, 2, 3]), "b": torch_file.Tensor("Float", [4])})
        for kind in FORMATS:
            target = self.root / kind
            done = cairn("convert", source, target, "--to", kind)
            self.assertEqual(done.returncode, FINE, done.stderr)
            if kind != "safetensors":
                self.assertEqual(cairn("diff", source, target).returncode, FINE)
        self.fails(WRONG_USE, "convert", source, self.root / "out", "--to", "torch", "--rename", "^b$=", text='nothing of the key "b"')

    def test_links_in_the_place_of_the_output(self):
        source, elsewhere = self.checkpoint(), self.root / "elsewhere"
        elsewhere.mkdir()
        precious = {"__0_0.distcp": "x", "__1_0_cairn-" + "0" * 32 + "-00000000-1.distcp": "y", "notes": "z"}
        for name, content in precious.items():
            (elsewhere / name).write_text(content)
        for name in ("out", "bad"):
            (self.root / name).symlink_to("elsewhere")
        damaged = shutil.copytree(source, self.root / "damaged")
        file = next(damaged.glob("*.distcp"))
        file.write_bytes(file.read_bytes()[:-100])
        self.assertEqual(cairn("convert", damaged, self.root / "bad", "--to", "dcp").returncode, FOUND_BAD)
        self.assertEqual({path.name: path.read_text() for path in elsewhere.iterdir()}, precious)
        done = cairn("convert", source, self.root / "out", "--to", "dcp")
        self.assertIn(done.returncode, (FINE, FOUND_BAD), done.stderr)
        self.assertEqual({name: (elsewhere / name).read_text() for name in precious}, precious)
        self.assertTrue((self.root / "out").is_symlink())

        (self.root / "a.pt.cairn-partial").symlink_to("elsewhere/notes")
        self.fails(WRONG_USE, "convert", source, self.root / "a.pt", "--to", "torch", text="symbolic links")
        self.assertEqual((elsewhere / "notes").read_text(), "z")


class Reads(Command):
    """The bytes that commands read, by the kernel's count of those that a process and its children have read."""

    def read_by(self, *arguments):
        def count():
            return int(pathlib.Path("/proc/self/io").read_text().splitlines()[0].split()[1])
        before = count()
        done = cairn(*arguments)
        self.assertIn(done.returncode, (FINE, FOUND_BAD), done.stderr)
        return count() - before

    def test_many_small_tensors_of_many_ranks_are_read_about_once(self):
        source, checkpoint = self.root / "a.pt", self.root / "checkpoint"
        torch_file.save(source, {f"tensor{i:04}": torch_file.Tensor("Float", [i] * 64) for i in range(1000)})
        self.assertEqual(cairn("convert", source, checkpoint, "--to", "dcp", "--world", "8").returncode, FINE)
        size = sum(path.stat().st_size for path in checkpoint.iterdir())
        for arguments in (["diff", checkpoint, source], ["convert", checkpoint, self.root / "b.pt", "--to", "torch"],
                          ["convert", checkpoint, self.root / "b", "--to", "dcp"]):
            self.assertLess(self.read_by(*arguments), 3 * size, arguments)


if __name__ == "__main__":
    run_tests()
