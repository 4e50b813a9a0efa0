#!/usr/bin/env python3
"""Values of classes that only Python has, in files of torch.save and in checkpoints of PyTorch. Started as cairn_command.py says."""

import argparse
import collections
import json
import os
import pathlib
import re
import zipfile

import hostile_files as made
import torch_file
from cairn_command import cairn, Command, FINE, FOUND_BAD, NOT_CHECKED, read_safetensors, run_tests

Point = collections.namedtuple("Point", "x y")


class Executed:
    def __reduce__(self):
        return os.system, ("touch executed",)


class Opaque(Command):
    def setUp(self):
        super().setUp()
        weight = torch_file.Tensor("Float", [0, 1, 2, 3, 4, 5])
        self.odd = {"arguments": argparse.Namespace(lr=0.1, w=weight), "path": pathlib.PurePosixPath("data/train"), "seen": {1, 2, 3},
                    "point": Point(1, 2), "counts": collections.Counter("aab"), "large": 2**70, "by_pair": {(1, 2): 3},
                    "mixed": [1, frozenset([2])], "harm": Executed()}
        self.odd["itself"] = loop = argparse.Namespace()
        loop.me = loop
        self.file = self.root / "odd.pt"
        torch_file.save(self.file, {"model": {"w": weight}, "step": 7, **self.odd})

    def fine(self, *arguments):
        done = cairn(*arguments, cwd=self.root)
        self.assertEqual(done.returncode, FINE, done.stdout + done.stderr)
        self.assertFalse((self.root / "executed").exists())
        return done.stdout

    def test_commands_work_on_the_rest_of_a_file(self):
        shown = self.fine("inspect", self.file)
        for key, text in {"arguments": "argparse.Namespace(lr=0.1", "seen": "builtins.set([1, 2, 3])", "harm": "system('touch executed')",
                          "path": "pathlib.PurePosixPath('data", "counts": "collections.Counter", "by_pair": "a dict"}.items():
            self.assertRegex(shown, rf"{key} +opaque +.*{re.escape(text)}")
        self.assertRegex(shown, r"step +value +7")
        keys = {key["key"]: key for key in json.loads(self.fine("inspect", self.file, "--json"))["keys"]}
        self.assertEqual({name for name, key in keys.items() if "opaque" in key}, set(self.odd))
        self.assertIn("5.0", self.fine("cat", self.file, "model.w"))
        self.assertIn("5.0", self.fine("cat", self.file, "arguments.w"))
        self.assertIn("<a value that contains itself>", self.fine("cat", self.file, "itself"))
        self.assertIn("tensor(float32 [6])", self.fine("cat", self.file, "arguments"))
        self.assertIn("{(1, 2): 3}", self.fine("cat", self.file, "by_pair"))
        self.assertIn("no difference", self.fine("diff", self.file, self.file))
        self.fine("verify", self.file)

    def test_convert_takes_the_rest_and_refuses_the_others_by_key(self):
        for format in "dcp", "torch":
            target = self.root / f"converted.{format}"
            refused = cairn("convert", self.file, target, "--to", format, cwd=self.root)
            self.assertEqual(refused.returncode, FOUND_BAD)
            for key in self.odd:
                self.assertIn(f"\n  {key}: ", refused.stderr)
            self.assertFalse(target.exists())
            self.fine("convert", self.file, target, "--to", format, "--skip-unsupported")
            self.assertIn("5.0", self.fine("cat", target, "model.w"))
            self.assertIn("5.0", self.fine("cat", target, "arguments.w"))
            self.assertNotIn("opaque", self.fine("inspect", target))
        self.fine("convert", self.file, self.root / "w.safetensors", "--to", "safetensors", "--select", "model.*")
        self.assertEqual(set(read_safetensors(self.root / "w.safetensors")[0]), {"model.w"})

    def test_a_file_of_an_object_shows_its_tensors(self):
        torch_file.save(self.file, argparse.Namespace(w=torch_file.Tensor("Float", [1, 2])))
        self.assertRegex(self.fine("inspect", self.file), r"argparse.Namespace +opaque")
        self.assertIn("2.0", self.fine("cat", self.file, "argparse.Namespace.w"))

    def test_a_value_of_a_checkpoint_is_opaque_alone(self):
        path = self.root / "checkpoint"
        path.mkdir()
        values = {"odd": made.instance("argparse", "Namespace", lr=made.REAL), "fine": made.integer(7),
                  "harm": made.called("os", "system", made.text(f"touch {self.root}/executed"))}
        made.write_archive(path / "__0_0.distcp", made.whole(made.tensor()))
        length = (path / "__0_0.distcp").stat().st_size
        described = made.instance(made.METADATA, "TensorStorageMetadata", properties=made.properties(), size=made.size_of(4),
                                  chunks=made.listed(made.chunk()))
        entries, places = [(made.text("a"), described)], [(made.instance(made.METADATA, "MetadataIndex", fqn=made.text("a"),
                                                                         offset=made.size_of(0)), self.place("__0_0.distcp", length))]
        for name, value in values.items():
            made.write_archive(path / f"__{name}.distcp", made.whole(value))
            entries.append((made.text(name), made.named(made.METADATA, "BytesStorageMetadata") + b")\x81}b"))
            places.append((made.instance(made.METADATA, "MetadataIndex", fqn=made.text(name)),
                           self.place(f"__{name}.distcp", (path / f"__{name}.distcp").stat().st_size)))
        (path / ".metadata").write_bytes(made.record(entries=made.mapping(*entries), places=made.mapping(*places),
                                                     paths=made.mapping(*((key, made.sequence(key)) for key, _ in entries))))
        shown = self.fine("inspect", path)
        self.assertRegex(shown, r"odd +opaque +argparse.Namespace\(lr=1.5\)")
        self.assertRegex(shown, r"harm +opaque +os.system")
        self.assertRegex(shown, r"fine +value +7")
        self.assertIn("argparse.Namespace(lr=1.5)", self.fine("cat", path, "odd"))
        self.assertIn("no difference", self.fine("diff", path, path))
        torch_file.save(self.file, {"first": [1], "odd": argparse.Namespace(lr=1.5)})
        self.assertIn("no difference", self.fine("diff", path, self.file, "--tensors", "odd"))
        torch_file.save(self.file, {"odd": argparse.Namespace(lr=2.5)})
        self.assertEqual(cairn("diff", path, self.file, "--tensors", "odd", cwd=self.root).returncode, FOUND_BAD)
        self.fine("verify", path)
        self.fails(FOUND_BAD, "convert", path, self.root / "dcp", "--to", "dcp", text="\n  odd: ")
        self.fine("convert", path, self.root / "dcp", "--to", "dcp", "--skip-unsupported")
        self.assertIn("7", self.fine("cat", self.root / "dcp", "fine"))
        self.assertNotIn("odd", self.fine("inspect", self.root / "dcp"))

    @staticmethod
    def place(file, length):
        return made.instance(made.FILESYSTEM, "_StorageInfo", relative_path=made.text(file), offset=made.integer(0), length=made.integer(length))

    def test_a_file_without_checksums_cannot_be_checked_and_one_missing_is_damage(self):
        torch_file.save(self.file, {"w": torch_file.Tensor("Float", [1, 2]), "step": 7})
        content = bytearray(self.file.read_bytes())

        def zero(names):
            changed = bytearray(content)
            with zipfile.ZipFile(self.file) as archive:
                for entry in archive.infolist():
                    if entry.filename in names:
                        changed[entry.header_offset + 14:entry.header_offset + 18] = bytes(4)
                        at = changed.index(entry.filename.encode(), archive.start_dir) - 46
                        changed[at + 16:at + 20] = bytes(4)
            (self.root / "zeroed.pt").write_bytes(changed)
            return self.root / "zeroed.pt"

        names = zipfile.ZipFile(self.file).namelist()
        for name in names:
            self.assertIn("checksum", self.damaged(FOUND_BAD, zero([name])))
        self.assertIn("no checksums", self.damaged(NOT_CHECKED, zero(names)))
        self.assertIn("2.0", self.fine("cat", self.root / "zeroed.pt", "w"))


if __name__ == "__main__":
    run_tests()
