#!/usr/bin/env python3
"""The command `cairn` from outside: output, exit codes, and what it leaves behind.

usage: cairn_test.py CAIRN MAKE_CHECKPOINT FIXTURES      FIXTURES: checkpoints that PyTorch wrote
"""

import json
import os
import pathlib
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

CAIRN, MAKE_CHECKPOINT, FIXTURES = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
FINE, FOUND_BAD, WRONG_USE = 0, 1, 2

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


class Command(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="cairn_tools_"))
        self.addCleanup(shutil.rmtree, self.root)

    def checkpoint(self, *options):
        path = self.root / "step_7"
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
                          ["convert", "a", "b", "--to", "zip"], ["inspect", "a", "b"]):
            done = cairn(*arguments)
            self.assertEqual(done.returncode, WRONG_USE, arguments)
            self.assertTrue(done.stderr or done.stdout)

    def test_help_and_version(self):
        self.assertIn("Examples:", cairn("--help").stdout)
        self.assertEqual(cairn("--help").returncode, FINE)
        self.assertRegex(cairn("--version").stdout, r"^cairn \d+\.\d+\.\d+\n$")

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


class Inspect(Command):
    def test_text_names_keys_shapes_and_origin(self):
        text = cairn("inspect", self.checkpoint()).stdout
        for part in ("Cairn", "model.weight", "[3, 4]", "bfloat16", "step         7", "note = for the tests", ".distcp"):
            self.assertIn(part, text)

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


if __name__ == "__main__":
    os.environ.pop("LD_PRELOAD", None)
    unittest.main(argv=sys.argv[:1], verbosity=2)
