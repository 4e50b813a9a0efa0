#!/usr/bin/env python3
"""The commands on checkpoints that torch_checkpointing wrote. Started as cairn_command.py says."""

import json
import shutil
import struct

import torch_file
from cairn_command import cairn, Command, FINE, FIXTURES, FOUND_BAD, read_safetensors, run_tests

WRITTEN = FIXTURES.parent / "torch_checkpointing-0.1.0"
W = struct.pack("<60f", *range(60))
B = b"".join(struct.pack("<f", value)[2:] for value in range(7))  # bfloat16


class Items(Command):
    def place(self, source="world_2", name="step_3"):
        return shutil.copytree(WRITTEN / source, self.root / name)

    def test_convert_gives_the_tensors_and_values_that_were_saved(self):
        for source in ("world_1", "world_2"):
            place = self.place(source, source)
            expected = {"model.w": ("F32", [10, 6], W), "model.b": ("BF16", [7], B), "model.nested.s": ("F32", [], struct.pack("<f", 3.5))}
            if source == "world_2":
                expected["model.nested.c"] = ("F32", [10, 6], W)
            target = self.root / "out.safetensors"
            done = cairn("convert", place, target, "--to", "safetensors", "--force", "--skip-unsupported")
            self.assertEqual(done.returncode, FINE, done.stderr)
            self.assertEqual(read_safetensors(target)[0], expected)
            for format, options in (("dcp", ("--world", "3")), ("torch", ())):
                target = self.root / f"{source}.{format}"
                done = cairn("convert", place, target, "--to", format, *options)
                self.assertEqual(done.returncode, FINE, done.stderr)
                self.assertEqual(cairn("diff", place, target).returncode, FINE)

    def test_inspect_shows_keys_chunks_and_values(self):
        place = self.place()
        told = json.loads(cairn("inspect", place, "--json").stdout)
        self.assertEqual((told["writer"], told["writer_version"]), ("torch_checkpointing", "2.0"))
        keys = {key["key"]: key for key in told["keys"]}
        self.assertEqual(sorted(keys), ["model.b", "model.nested.c", "model.nested.s", "model.w", "plain.lr", "plain.name", "plain.steps", "step"])
        self.assertEqual([(chunk["offsets"], chunk["sizes"], chunk["file"], chunk["rank"]) for chunk in keys["model.nested.c"]["chunks"]],
                         [([0, 0], [10, 3], "model_0.pt", 0), ([0, 3], [10, 3], "model_1.pt", 1)])
        self.assertEqual(keys["model.nested.c"]["path"], ["model", "nested", "c"])
        self.assertRegex(cairn("inspect", place).stdout, r"step +value +7")
        self.assertEqual(cairn("cat", place, "plain.steps").stdout.splitlines()[-1], "[1, 2]")

    def test_ls_and_verify_take_it_for_a_checkpoint_of_the_run(self):
        self.checkpoint("--step", "7")
        self.place()
        self.place("world_1", "other")
        told = json.loads(cairn("ls", self.root, "--json").stdout)
        self.assertEqual([(one["name"], one["writer"], one["step"], one["world_size"], one["sound"]) for one in told["checkpoints"]],
                         [("step_7", "cairn", 7, 1, True), ("other", "torch_checkpointing", None, 1, True),
                          ("step_3", "torch_checkpointing", 3, 2, True)])
        self.assertEqual((told["latest"], told["leftovers"]), ("step_7", []))
        self.assertIn("3 of 3 checkpoints are fine", cairn("verify", self.root).stdout)
        self.assertIn("torch_checkpointing wrote what is at", cairn("rm", self.root / "step_3", "--yes").stderr)

    def test_the_files_of_a_failed_save_are_named(self):
        place = self.place()
        (place / "plain_1.pt").write_bytes(b"")
        self.fails(FOUND_BAD, "inspect", place, text="It has 0 bytes: a save that failed leaves an empty or short file")
        self.assertIn("plain_1.pt", self.damaged(FOUND_BAD, place))
        done = cairn("ls", self.root)
        self.assertEqual(done.returncode, FOUND_BAD, done.stderr)
        self.assertIn("DAMAGED: plain_1.pt is empty", done.stdout)
        (place / "plain_1.pt").write_bytes((WRITTEN / "world_2/plain_1.pt").read_bytes()[:-30])
        self.fails(FOUND_BAD, "inspect", place, text="a save that failed leaves")
        shutil.rmtree(place)
        content = bytearray((self.place() / "model_1.pt").read_bytes())
        content[content.index(struct.pack("<2f", 30, 31))] ^= 1
        (place / "model_1.pt").write_bytes(content)
        self.assertIn("model_1.pt", self.damaged(FOUND_BAD, place))
        self.fails(FOUND_BAD, "cat", place, "model.w", text="checksum")

    def test_values_that_ranks_saved_differently_are_named(self):
        place = self.place()
        torch_file.save(place / "plain_1.pt", {"lr": 0.2, "name": "x", "steps": [1, 2]})
        self.fails(FOUND_BAD, "convert", place, self.root / "out", "--to", "dcp",
                   text="plain.lr: its value on rank 1 differs from that on rank 0")
        done = cairn("convert", place, self.root / "out", "--to", "dcp", "--exclude", "plain.lr")
        self.assertEqual(done.returncode, FINE, done.stderr)

    def test_a_pickle_of_others_is_no_record(self):
        place = self.root / "step_3"
        place.mkdir()
        (place / "metadata.pkl").write_bytes(b"\x80\x04}.")
        self.fails(FOUND_BAD, "inspect", place, text="is no checkpoint")


if __name__ == "__main__":
    run_tests()
