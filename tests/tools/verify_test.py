#!/usr/bin/env python3
"""`cairn verify` from outside. Started as cairn_command.py says."""

import fcntl
import json
import select
import shutil
import struct
import subprocess
import zlib

import torch_file
from cairn_command import cairn, CAIRN, Command, FINE, FIXTURES, FOUND_BAD, NOT_CHECKED, run_tests


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

    def test_a_fault_in_a_shared_file_names_all_that_share_it(self):
        self.checkpoint(name="step_1")
        latest = self.checkpoint("--donor", self.root / "step_2", name="step_3")
        shared = next(path for path in latest.glob("*.distcp") if path.stat().st_nlink > 1)
        content = bytearray(shared.read_bytes())
        content[len(content) // 2] ^= 1
        shared.write_bytes(content)
        for bad, other in (("step_2", "step_3"), ("step_3", "step_2")):
            told = json.loads(cairn("verify", self.root / bad, "--json").stdout)
            self.assertEqual((told["verdict"], told["shared_with"]), ("faults", [other]))
            self.assertIn(f"bad: {other} was saved with them, too", cairn("verify", self.root / bad).stdout)
        self.assertEqual(cairn("verify", self.root / "step_1").returncode, FINE)

    def test_all_faults_are_listed(self):
        path = self.fixture("threads")
        gone, short = path / "__0_0.distcp", path / "__2_3.distcp"
        gone.unlink()
        short.write_bytes(short.read_bytes()[:-100])
        text = self.damaged(FOUND_BAD, path)
        self.assertIn(gone.name, text)
        self.assertIn(short.name, text)

    def test_parts_of_a_tensor_that_are_missing_are_a_fault_and_are_not_made_up(self):
        path = self.fixture("single")
        record = path / ".metadata"
        content = bytearray(record.read_bytes())
        self.assertEqual(content[327], 8)
        content[327] = 136  # the rows of model.0.weight: one bit, and the pickle stays sound
        record.write_bytes(content)
        missing = "model.0.weight' lacks data in [8:136, 0:4]"
        self.assertIn(missing, self.damaged(FOUND_BAD, path))
        self.fails(FOUND_BAD, "cat", path, "model.0.weight", "--slice", "30:36,:", text=missing)
        for kind in ("safetensors", "torch", "dcp"):
            self.fails(FOUND_BAD, "convert", path, self.root / kind, "--to", kind, text=missing)
            self.assertFalse((self.root / kind).exists())
        copy = self.root / "copy"
        shutil.copytree(path, copy)
        compared = cairn("diff", path, copy)
        self.assertEqual(compared.returncode, FOUND_BAD)
        self.assertIn(missing, compared.stdout)
        self.assertEqual(cairn("cat", path, "model.0.weight", "--slice", "2:4,:").returncode, FINE, "which is there")

    def test_what_cannot_be_checked_is_told_apart_from_faults(self):
        path = self.checkpoint()
        record = path / ".metadata"
        whole = record.read_bytes()
        newer = bytearray(whole[:-4])
        struct.pack_into("<I", newer, len(newer) - 12, 3)  # the version of the format, in the footer
        record.write_bytes(newer + struct.pack("<I", zlib.crc32(newer)))
        text = self.damaged(NOT_CHECKED, path)
        for part in ("not checked: .metadata", "version 3", "no fault found, but 1 item cannot be checked"):
            self.assertIn(part, text)
        self.assertNotIn("bad:", text)
        told = json.loads(cairn("verify", path, "--json").stdout)
        self.assertEqual((told["fine"], told["verdict"], told["faults"]), (False, "unchecked", []))
        self.assertEqual([item["file"] for item in told["unchecked"]], [".metadata"])
        record.write_bytes(whole)

        file = next(path.glob("*.distcp"))
        content = bytearray(file.read_bytes())
        footer = len(content) - 28
        struct.pack_into("<I", content, footer + 8, 2)  # the version of the trailer, behind its magic number
        struct.pack_into("<I", content, footer + 24, zlib.crc32(content[footer:footer + 24]))
        file.write_bytes(content)
        self.assertIn("version 2", self.damaged(NOT_CHECKED, path))
        content[100] ^= 1
        file.write_bytes(content)
        text = self.damaged(FOUND_BAD, path)
        for part in ("bad: ", "not checked: ", "1 fault found, and 1 item cannot be checked"):
            self.assertIn(part, text)
        help_text = cairn("verify", "--help").stdout
        self.assertIn("cannot be checked", help_text)
        self.assertIn("exits with 3", help_text)

    def test_all_checkpoints_of_a_run_and_several_places_are_verified(self):
        run = self.root / "run"
        run.mkdir()
        for step in ("10", "20", "30"):
            self.checkpoint("--step", step, name=f"run/step_{step}")
        done = cairn("verify", run)
        self.assertEqual(done.returncode, FINE, done.stderr)
        self.assertEqual([line.split(":")[-2].rsplit("/")[-1] for line in done.stdout.splitlines()[:3]], ["step_30", "step_20", "step_10"])
        self.assertIn("3 of 3 checkpoints are fine", done.stdout)

        file = next((run / "step_20").glob("*.distcp"))
        file.write_bytes(file.read_bytes()[:-10])
        record = run / "step_10" / ".metadata"
        record.write_bytes(record.read_bytes()[:-10])
        done = cairn("verify", run)
        self.assertEqual(done.returncode, FOUND_BAD, done.stderr)
        self.assertIn("1 of 3 checkpoints are fine", done.stdout)
        self.assertIn(file.name, done.stdout)
        told = json.loads(cairn("verify", run, "--json").stdout)
        self.assertEqual([entry["fine"] for entry in told], [True, False, False])

        self.assertEqual(cairn("verify", run / "step_30", self.fixture("single")).returncode, FINE)
        done = cairn("verify", run / "step_30", self.root / "nowhere")
        self.assertEqual(done.returncode, FOUND_BAD)
        self.assertIn("there is no checkpoint", done.stdout)
        self.assertIn("1 of 2 checkpoints are fine", done.stdout)

    def test_removed_and_replaced_checkpoints_of_a_run_are_neither_fine_nor_bad(self):
        # The first verdict names the run and shows each \a as \x07, so that it exceeds the pipe. The command then waits, after it has
        # listed the run and before it reads the next checkpoint.
        name = "/".join(["\a" * 250] * 5)
        run = self.root / name
        run.mkdir(parents=True)
        for step in ("10", "20", "30", "40"):
            self.checkpoint("--step", step, name=f"{name}/step_{step}")
        with subprocess.Popen([CAIRN, "verify", run], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, pipesize=4096) as verify:
            self.addCleanup(verify.kill)
            if fcntl.fcntl(verify.stdout, fcntl.F_GETPIPE_SZ) > 4096:
                self.skipTest("needs a pipe of 4096 bytes")
            select.select([verify.stdout], [], [])
            shutil.rmtree(run / "step_30")
            shutil.rmtree(run / "step_20")
            file = next(self.checkpoint(name=f"{name}/step_20").glob("*.distcp"))
            file.write_bytes(file.read_bytes()[:-10])
            stdout, stderr = verify.communicate()
        self.assertEqual((verify.returncode, stderr), (FINE, ""), stdout)
        told = [line.rsplit("/")[-1].split(",")[0] for line in stdout.splitlines()]
        self.assertEqual(told, ["step_40: fine", "step_30: removed meanwhile", "step_20: replaced meanwhile", "step_10: fine",
                                "2 of 2 checkpoints are fine; 2 removed or replaced meanwhile"])

    def test_a_flipped_bit_of_a_file_of_torch_save_is_found(self):
        path = self.root / "a.pt"
        (begin,) = torch_file.save(path, {"weight": torch_file.Tensor("Float", [1, 2, 3]), "step": 7})
        whole = path.read_bytes()
        self.assertIn("fine", self.damaged(FINE, path))
        for at in (0, whole.index(b"step"), begin, len(whole) - 20):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1:])
            self.assertIn("bad: " + str(path), self.damaged(FOUND_BAD, path), f"byte {at}")

    def test_a_safetensors_file_has_no_checksums_and_its_header_is_checked(self):
        def content(header, data=bytes(8)):
            text = json.dumps(header).encode() if isinstance(header, dict) else header
            return struct.pack("<Q", len(text)) + text + data

        def tensor(**other):
            return {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **other}}

        path = self.root / "a.safetensors"
        path.write_bytes(content(tensor()))
        self.assertIn("has no checksums", self.damaged(NOT_CHECKED, path))
        for bad in (content(tensor(data_offsets=[0, 4])), content(tensor(data_offsets=[4, 12])), content(tensor(shape=[-2])),
                    content(tensor(shape=[2**62, 4])), content(tensor(), bytes(9)), content(tensor(), bytes(7)), content(tensor(shape="x")),
                    content({"a": 1}), content(b"{" + b"[" * 100000), content(b'{"a":'), content(tensor())[:12]):
            path.write_bytes(bad)
            self.assertIn("bad: " + str(path), self.damaged(FOUND_BAD, path), bad[:80])
        path.write_bytes(content(tensor(dtype="F4_NEW")))
        self.assertIn("F4_NEW", self.damaged(NOT_CHECKED, path))
        path.write_bytes(content({"a": {"dtype": "F6_E2M3", "shape": [4096], "data_offsets": [0, 3072]}}, bytes(3072)))
        self.assertIn("F6_E2M3", self.damaged(NOT_CHECKED, path))

    def test_faults_for_programs(self):
        path = self.checkpoint()
        told = json.loads(cairn("verify", path, "--json").stdout)
        self.assertEqual((told["fine"], told["verdict"], told["faults"], told["unchecked"]), (True, "fine", [], []))
        file = next(path.glob("*.distcp"))
        content = bytearray(file.read_bytes())
        content[70000] ^= 1
        file.write_bytes(content)
        done = cairn("verify", path, "--json")
        self.assertEqual(done.returncode, FOUND_BAD)
        (fault,) = json.loads(done.stdout)["faults"]
        self.assertEqual(fault["file"], file.name)
        self.assertLessEqual(fault["offset"], 70000)


if __name__ == "__main__":
    run_tests()
