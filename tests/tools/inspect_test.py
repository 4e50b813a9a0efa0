#!/usr/bin/env python3
"""`cairn inspect` from outside. Started as cairn_command.py says."""

import json
import shutil
import struct
import zlib

import torch_file
from cairn_command import CAIRN, cairn, Command, FINE, FIXTURES, FOUND_BAD, run_tests, WEIGHT, WRONG_USE


class Inspect(Command):
    def test_text_names_keys_shapes_and_origin(self):
        text = cairn("inspect", self.checkpoint()).stdout
        for part in ("Cairn", "├─ weight", "[3, 4]", "bfloat16", "step         7", "note = for the tests", ".distcp"):
            self.assertIn(part, text)
        self.assertNotIn("\033", text, "colours are for terminals")

    def test_small_values_are_shown(self):
        path = self.checkpoint()
        text = cairn("inspect", path).stdout
        self.assertRegex(text, r"(?m)^step +value +7 +\d+ B +rank 0$")
        self.assertRegex(text, r"(?m)^name +value +'grün' +\d+ B +rank 0$")
        for file in path.glob("*.distcp"):
            file.unlink()
        done = cairn("inspect", path)
        self.assertEqual(done.returncode, FINE, done.stderr)
        self.assertRegex(done.stdout, r"(?m)^step +bytes +\d+ B +rank 0$")

    def test_of_some_keys_only(self):
        told = json.loads(cairn("inspect", self.checkpoint(), "--json", "--tensors", "model.*t", "--tensors", "st?p").stdout)
        self.assertEqual([entry["key"] for entry in told["keys"]], ["model.weight", "model.count", "step"])
        told = json.loads(cairn("inspect", "--tensors", "[lm]*e", self.root / "step_7", "--json").stdout)
        self.assertEqual([entry["key"] for entry in told["keys"]], ["large"])
        self.fails(WRONG_USE, "inspect", self.root / "step_7", "--tensors", "modul*", text="no key")

    def test_fields_of_later_versions_are_listed(self):
        path = self.checkpoint()
        record = (path / ".metadata").read_bytes()
        record = record[:-32] + b"\xfa\x06\x03xyz" + record[-32:-4]
        (path / ".metadata").write_bytes(record + struct.pack("<I", zlib.crc32(record)))
        done = cairn("inspect", path)
        self.assertEqual(done.returncode, FINE, done.stderr)
        self.assertIn("field 111 of the record, 4 bytes, of a later version", done.stdout)
        self.assertEqual(json.loads(cairn("inspect", path, "--json").stdout)["later_fields"], [{"bytes": 4, "field": 111}])
        self.assertEqual(cairn("verify", path).returncode, FINE)

    def test_what_each_rank_wrote(self):
        told = json.loads(cairn("inspect", self.checkpoint("--grid"), "--json", "--tensors", "grid").stdout)
        self.assertEqual([(share["rank"], share["chunks"], share["bytes"]) for share in told["ranks"]],
                         [(rank, 1, 3 * 4 * 4) for rank in range(4)])
        text = cairn("inspect", self.root / "step_7").stdout
        self.assertRegex(text, r"grid +float32 +\[6, 8\] +4 chunks +192 B +ranks 0-3")

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

    def test_a_file_of_torch_save(self):
        path = self.root / "a.pt"
        torch_file.save(path, {"model": {"weight": torch_file.Tensor("Float", [1, 2, 3])}, "step": 7})
        told = json.loads(cairn("inspect", path, "--json").stdout)
        self.assertEqual((told["checkpoint"], told["writer"], told["files"]), (str(path), "torch.save", []))
        keys = {entry["key"]: entry for entry in told["keys"]}
        self.assertEqual((keys["model.weight"]["dtype"], keys["model.weight"]["shape"], keys["model.weight"]["path"]),
                         ("float32", [3], ["model", "weight"]))
        self.assertEqual(keys["step"]["kind"], "bytes")
        self.assertRegex(cairn("inspect", path).stdout, r"(?m)^step +value +7$")
        text = cairn("inspect", path, "--tensors", "model*").stdout
        self.assertRegex(text, "written by +torch.save")
        self.assertRegex(text, r"weight +float32 +\[3\] +12 B")
        self.fails(WRONG_USE, "inspect", path, "--chunks", text="no ranks")

    def test_what_is_no_checkpoint_is_named(self):
        other = self.root / "a.txt"
        other.write_text("no archive")
        self.fails(FOUND_BAD, "inspect", other, text="not an archive of torch.save")
        place = self.root / "place"
        place.mkdir()
        (place / "__0_0.distcp").write_text("x")
        (place / "other").write_text("x")
        for command in ("inspect", "verify"):
            self.fails(FOUND_BAD, command, place, text="died half-way")

    def test_pytorchs_records_of_single_ranks(self):
        source = FIXTURES.parent / "pytorch-2.14" / "rank_local"
        keys = {entry["key"]: entry for entry in json.loads(cairn("inspect", source, "--json").stdout)["keys"]}
        self.assertEqual([chunk["rank"] for chunk in keys["model.rows"]["chunks"]], [0, 1])
        self.assertIn("fine", cairn("verify", source).stdout)
        self.assertIn("19", cairn("cat", source, "model.rows").stdout)
        for format in ("torch", "dcp"):
            done = cairn("convert", source, self.root / format, "--to", format)
            self.assertEqual(done.returncode, FINE, done.stderr)
            done = cairn("diff", source, self.root / format)
            self.assertEqual(done.returncode, FINE, done.stdout)
        shutil.copytree(source, self.root / "run" / "step_7")
        (told,) = json.loads(cairn("ls", self.root / "run", "--json").stdout)["checkpoints"]
        self.assertEqual((told["name"], told["writer"], told["world_size"], told["sound"]), ("step_7", "pytorch", 2, True))
        self.fails(WRONG_USE, "ls", self.root / "run" / "step_7", text="is a checkpoint, not a run")
        (self.root / "run" / "step_7" / "__1_0.distcp").unlink()
        for command in ("inspect", "verify"):
            self.fails(FOUND_BAD, command, self.root / "run" / "step_7", text="one record for each rank")
        self.assertIn("DAMAGED", cairn("ls", self.root / "run").stdout)
        shutil.copytree(source, self.root / "run" / "step_8")
        done = cairn("rm", "--foreign", "--last-sound", "--yes", self.root / "run" / "step_8")
        self.assertEqual(done.returncode, FINE, done.stderr)
        self.assertFalse((self.root / "run" / "step_8").exists())

    def test_pointers_of_git_lfs_are_named(self):
        pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:%064d\nsize 4976698672\n" % 1
        place = self.checkpoint()
        (self.root / "two").mkdir()
        for path in ("model.pt", "model.safetensors", "two/a.safetensors", "two/b.safetensors", "step_7/.metadata"):
            (self.root / path).write_text(pointer)
        for named in ("model.pt", "model.safetensors", "two", place):
            self.fails(FOUND_BAD, "inspect", self.root / named, text="git lfs pull")
        # In place of data files: PyTorch records no lengths.
        shutil.copytree(FIXTURES / "threads", self.root / "run" / "step_1")
        self.checkpoint(name="run/step_2")
        for place in (self.root / "run").iterdir():
            sorted(place.glob("*.distcp"))[0].write_text(pointer)
            self.assertIn("git lfs pull", self.damaged(FOUND_BAD, place))
            self.fails(FOUND_BAD, "convert", place, self.root / "a.pt", "--to", "torch", text="git lfs pull")
        self.assertEqual(cairn("ls", self.root / "run").stdout.count("git lfs pull"), 2)
        self.fails(WRONG_USE, "inspect", "~/run", text="only shells replace ~")

    def test_one_long_key_does_not_widen_all_rows(self):
        path = self.root / "a.pt"
        torch_file.save(path, {"x" * 3000: 1, "short": 2})
        lines = cairn("inspect", path).stdout.splitlines()
        self.assertTrue(any("x" * 3000 in line for line in lines))
        (short,) = (line for line in lines if line.startswith("short"))
        self.assertLess(len(short), 120)

    def test_chunks_are_listed_when_asked_for(self):
        self.assertNotIn("[0:", cairn("inspect", FIXTURES / "threads").stdout)
        self.assertIn("[0:4, 0:8]", cairn("inspect", FIXTURES / "threads", "--chunks").stdout)


if __name__ == "__main__":
    run_tests()
