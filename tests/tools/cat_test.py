#!/usr/bin/env python3
"""`cairn cat` from outside. Started as cairn_command.py says."""

import json
import struct

import torch_file
from cairn_command import cairn, Command, FINE, FIXTURES, FOUND_BAD, read_safetensors, run_tests, WRONG_USE


class Cat(Command):
    def shown(self, *arguments):
        done = cairn("cat", *arguments)
        self.assertEqual(done.returncode, FINE, done.stderr)
        return done.stdout

    def values(self, *arguments):
        return json.loads(self.shown(*arguments, "--json"))["values"]

    def test_a_tensor_and_its_parts(self):
        path = self.checkpoint()
        self.assertEqual(self.shown(path, "model.weight"), "model.weight float32 [3, 4]\n[[ 0.0,  1.0,  2.0,  3.0],\n"
                         " [ 4.0,  5.0,  6.0,  7.0],\n [ 8.0,  9.0, 10.0, 11.0]]\n")
        for text, expected in (("1", [4, 5, 6, 7]), ("-1,0", 8), (":2,1:3", [[1, 2], [5, 6]]), ("...,-1", [3, 7, 11]),
                               ("2:,:", [[8, 9, 10, 11]]), ("5:,:", []), ("1:-1", [[4, 5, 6, 7]])):
            self.assertEqual(self.values(path, "model.weight", "--slice", text), expected, text)
        self.assertEqual(self.values(path, "model.transposed", "--slice", "1"), [1, 4])
        self.assertEqual(self.values(path, "model.count"), 41)
        self.assertEqual(self.values(path, "model.flags"), [True, False, True])
        self.assertEqual(self.values(path, "model.empty"), [])

    def test_parts_that_lie_on_several_ranks(self):
        self.assertEqual(self.values(self.checkpoint("--grid"), "grid", "--slice", "2:4,3:5"), [[19, 20], [27, 28]])

    def test_of_many_elements_the_ends_are_shown(self):
        path = self.checkpoint()
        self.assertEqual(self.shown(path, "large").splitlines()[1], "[    0,     1,     2, ..., 69997, 69998, 69999]")
        self.assertEqual(self.shown(path, "large", "--full").count(","), 69999)

    def test_what_is_not_asked_for_is_not_read(self):
        path = self.checkpoint()
        file = next(path.glob("*.distcp"))
        content = bytearray(file.read_bytes())
        content[200_000] ^= 1  # in the middle of `large`
        file.write_bytes(content)
        self.assertEqual(self.values(path, "large", "--slice", "5:7"), [5, 6])
        self.fails(FOUND_BAD, "cat", path, "large", "--full", text="large")

    def test_numbers_that_json_lacks(self):
        path = self.checkpoint("--set", "weight,0,nan", "--set", "weight,1,-inf", "--complex")
        self.assertEqual(self.values(path, "model.weight", "--slice", "0,:3"), ["nan", "-inf", 2])
        self.assertEqual(self.values(path, "complex"), [[0, 0], [0, 0]])

    def test_the_smallest_numbers(self):
        self.assertEqual(self.values(self.checkpoint("--set", "transposed,0,5e-324"), "model.transposed", "--slice", "0"), [5e-324, 3])
        self.assertEqual(self.values(self.checkpoint("--set", "weight,0,1e-45", name="short"), "model.weight", "--slice", "0,0"), 1e-45)

    def test_numbers_have_the_digits_of_their_type(self):
        path = self.root / "a.pt"
        torch_file.save(path, {"short": torch_file.Tensor("ComplexFloat", [0.1, -0.2]),
                               "long": torch_file.Tensor("ComplexDouble", [0.1, 0.2])})
        self.assertIn("0.1-0.2j", self.shown(path, "short"))
        self.assertIn("0.1+0.2j", self.shown(path, "long"))
        self.assertEqual((self.values(path, "short"), self.values(path, "long")), ([[0.1, -0.2]], [[0.1, 0.2]]))

    def test_numbers_that_libtorch_lacks(self):
        kinds = {"uint16": ([1, 65535], [1, 65535]), "uint32": ([2**32 - 1], [2**32 - 1]), "uint64": ([2**64 - 1], [2**64 - 1]),
                 "float8_e4m3fn": ([0x38, 0x7E, 0x81, 0x7F, 0xFF], [1.0, 448.0, -2.0**-9, "nan", "nan"]),
                 "float8_e5m2": ([0x3C, 0x7B, 0x01, 0xFC, 0x7D], [1.0, 57344.0, 2.0**-16, "-inf", "nan"]),
                 "float8_e4m3fnuz": ([0x40, 0x7F, 0x01, 0x80], [1.0, 240.0, 2.0**-10, "nan"]),
                 "float8_e5m2fnuz": ([0x40, 0xFF, 0x01, 0x80], [1.0, -57344.0, 2.0**-17, "nan"]),
                 "float8_e8m0fnu": ([127, 128, 0, 254, 255], [1.0, 2.0, 2.0**-127, 2.0**127, "nan"]),
                 "float4_e2m1fn_x2": ([0x21, 0xF7, 0x6B], [[0.5, 1.0], [6.0, -6.0], [-1.5, 4.0]])}
        path = self.root / "a.pt"
        torch_file.save(path, {kind: torch_file.Tensor(kind, parts) for kind, (parts, _) in kinds.items()})

        def rounded(number):  # as a float32 of the same digits
            if isinstance(number, list):
                return [rounded(part) for part in number]
            return struct.pack("<f", number) if isinstance(number, float) else number

        for kind, (_, expected) in kinds.items():
            self.assertEqual(rounded(self.values(path, kind)), rounded(expected), kind)
        self.assertIn("[ (0.5, 1.0), (6.0, -6.0), (-1.5, 4.0)]", self.shown(path, "float4_e2m1fn_x2"))
        self.assertEqual(self.values(path, "uint16", "--slice", "1"), 65535)

    def test_damage_of_tensors_within_values_is_no_value(self):
        path = self.root / "a.pt"
        begins = torch_file.save(path, {"pair": (1, torch_file.Tensor("Float", [1, 2])), "sound": (torch_file.Tensor("Float", [3]),)})
        self.assertIn("(1, tensor(float32 [2]))", self.shown(path, "pair"))
        content = bytearray(path.read_bytes())
        content[begins[0]] ^= 1
        path.write_bytes(content)
        self.fails(FOUND_BAD, "cat", path, "pair", text="checksum")
        self.assertIn("tensor", self.shown(path, "sound"))

    def test_a_value_that_cannot_be_shown_is_no_success(self):
        path, key = self.fixture("nested"), "train_state.epoch"
        self.shown(path, key)
        place = next(entry for entry in json.loads(cairn("inspect", path, "--json").stdout)["keys"] if entry["key"] == key)
        file = path / place["file"]
        content = bytearray(file.read_bytes())
        content[content.index(b"PK\1\2", place["offset"]) + 10] = 8  # the first entry of the archive is "deflated"
        file.write_bytes(content)
        for options in ((), ("--json",)):
            done = cairn("cat", path, key, *options)
            self.assertEqual(done.returncode, FOUND_BAD, done.stderr)
            self.assertIn("is compressed", done.stdout + done.stderr)

    def test_values(self):
        path = self.checkpoint()
        self.assertEqual(self.shown(path, "step"), "step is an int\n7\n")
        self.assertEqual(self.shown(path, "name"), "name is a str\n'grün'\n")
        self.fails(WRONG_USE, "cat", path, "step", "--slice", "0", text="no tensor")

    def test_checkpoints_of_pytorch(self):
        for name in ("fsdp_uneven", "nested"):
            expected, _, _ = read_safetensors(FIXTURES / name / "expected.safetensors")
            for key, (dtype, shape, data) in expected.items():
                if dtype != "F32" or len(shape) != 2 or shape[0] < 3:
                    continue
                row = struct.unpack_from(f"<{shape[1]}f", data, 2 * 4 * shape[1])
                shown = self.values(FIXTURES / name, key, "--slice", "2")
                self.assertEqual([struct.pack("<f", number) for number in shown], [struct.pack("<f", number) for number in row], key)

    def test_wrong_use(self):
        path = self.checkpoint()
        self.fails(WRONG_USE, "cat", path, "model.wieght", text='the closest are "model.weight"')
        done = self.fails(WRONG_USE, "cat", path, "model", text='no key "model": below it are "model.weight", "model.bias", ')
        self.assertIn(" and 1 more", done.stderr)
        values = self.root / "values.pt"
        torch_file.save(values, {"l": [1, 2]})
        self.fails(WRONG_USE, "cat", values, "l.0", text='"l" is one value, which is shown as a whole')
        done = self.fails(WRONG_USE, "cat", FIXTURES / "nested", "dtype", text="the closest are")
        self.assertNotIn('"dtypes"', done.stderr, "a name that would fail as well")
        for text, why in (("7", "outside"), ("a", "no number"), ("0:4:2", "steps"), ("0,0,0", "dimensions"), ("...,...", "twice")):
            self.fails(WRONG_USE, "cat", path, "model.weight", "--slice", text, text=why)


if __name__ == "__main__":
    run_tests()
