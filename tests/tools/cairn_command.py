"""What tests of the command `cairn` have in common: it is run from outside, for its output, its exit codes, and what it leaves behind.

usage of each: <command>_test.py CAIRN MAKE_CHECKPOINT FIXTURES [TEST…]      FIXTURES: checkpoints that PyTorch wrote
"""

import functools
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

CAIRN, MAKE_CHECKPOINT, FIXTURES = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
FINE, FOUND_BAD, WRONG_USE, NOT_CHECKED = 0, 1, 2, 3
SKIPPED = 77  # SKIP_RETURN_CODE: this machine cannot run a case, and no case failed

WEIGHT = struct.pack("<12f", *range(12))


def cairn(*arguments, **options):
    return subprocess.run([CAIRN, *map(str, arguments)], stdout=options.pop("stdout", subprocess.PIPE), stderr=subprocess.PIPE,
                          text=True, **options)


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


def without_rights():
    """For `preexec_fn`: root, who may read everything, becomes nobody."""
    if os.geteuid() == 0:
        os.setgid(65534)
        os.setuid(65534)


@functools.cache
def made(checkpoints):
    """A directory with these checkpoints, each a name and options, in this order. Tests copy them: a program with LibTorch starts slowly."""
    directory = tempfile.TemporaryDirectory(prefix="cairn_tools_")
    name, *options = checkpoints[-1]
    if earlier := checkpoints[:-1]:  # without one of this name, which the test has removed
        shutil.copytree(made(earlier).name, directory.name, dirs_exist_ok=True, ignore=shutil.ignore_patterns(os.path.basename(name)))
    subprocess.run([MAKE_CHECKPOINT, os.path.join(directory.name, name), *options], check=True)
    return directory


class Command(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="cairn_tools_"))
        self.addCleanup(shutil.rmtree, self.root)
        self.checkpoints = ()

    def checkpoint(self, *options, name="step_7"):
        path = self.root / name
        if "--donor" in options or path.exists():
            subprocess.run([MAKE_CHECKPOINT, path, *options], check=True)
            return path
        self.checkpoints += ((name, *options),)
        return pathlib.Path(shutil.copytree(os.path.join(made(self.checkpoints).name, name), path))

    def fixture(self, name):
        """A copy, for tests that damage it."""
        return pathlib.Path(shutil.copytree(FIXTURES / name, self.root / name))

    def fails(self, code, *arguments, text, **how):
        done = cairn(*arguments, **how)
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertIn(text, done.stderr)
        self.assertNotIn("terminate called", done.stderr)
        return done

    def damaged(self, code, path):
        done = cairn("verify", path)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr


def run_tests():
    os.environ.pop("LD_PRELOAD", None)
    os.environ.pop("NO_COLOR", None)
    result = unittest.main(argv=[sys.argv[0], *sys.argv[4:]], verbosity=2, exit=False).result
    sys.exit(SKIPPED if result.wasSuccessful() and result.skipped else not result.wasSuccessful())
