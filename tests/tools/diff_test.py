#!/usr/bin/env python3
"""`cairn diff` from outside. Started as cairn_command.py says."""

import json
import math

import torch_file
from cairn_command import cairn, Command, FINE, FIXTURES, FOUND_BAD, read_safetensors, run_tests, WRONG_USE


class Diff(Command):
    def differences(self, *arguments, code=FOUND_BAD):
        done = cairn("diff", *arguments, "--json")
        self.assertEqual(done.returncode, code, done.stderr)
        told = json.loads(done.stdout)
        self.assertEqual(told["equal"], code == FINE)
        return {entry["key"]: entry for entry in told["differences"]}

    def test_equal_ones(self):
        path = self.checkpoint("--set", "weight,3,nan", "--set", "weight,4,inf")
        self.assertEqual(self.differences(path, self.checkpoint("--set", "weight,3,nan", "--set", "weight,4,inf", name="b"), code=FINE), {})
        self.assertIn("no difference", cairn("diff", path, path).stdout)

    def test_elements_that_differ(self):
        a = self.checkpoint("--set", "bias,0,nan")
        b = self.checkpoint("--set", "weight,5,7.5", "--set", "weight,10,9", "--set", "bias,0,nan", "--set", "bias,3,nan", name="b")
        for memory in ("1", "1MiB"):  # in pieces of one element, and at once
            found = self.differences(a, b, "--memory", memory)
            self.assertEqual(list(found), ["model.weight", "model.bias"])
            weight = found["model.weight"]
            self.assertEqual((weight["elements"], weight["different"], weight["one_nan"], weight["max"], weight["first"]),
                             (12, 2, 0, 2.5, [1, 1]))
            self.assertAlmostEqual(weight["mean"], 3.5 / 12)
            bias = found["model.bias"]
            self.assertEqual((bias["different"], bias["one_nan"], bias["max"], bias["first"], bias["b"]), (1, 1, 0, [3], "nan"))
        self.assertIn("first at [1, 1]: 5.0 / 7.5", cairn("diff", a, b).stdout)

    def test_a_tolerance(self):
        a, b = self.checkpoint(), self.checkpoint("--set", "weight,5,5.5", name="b")
        self.differences(a, b, "--tolerance", "0.5", code=FINE)
        self.assertEqual(list(self.differences(a, b, "--tolerance", "0.4")), ["model.weight"])
        nan = self.checkpoint("--set", "weight,5,nan", name="nan")
        self.assertEqual(list(self.differences(a, nan, "--tolerance", "1e9")), ["model.weight"])

    def of_elements(self, a, b, *arguments, code=FOUND_BAD):
        """What is said of tensors of these kinds and elements, by what differs."""
        for name, (kind, elements) in (("a.pt", a), ("b.pt", b)):
            torch_file.save(self.root / name, {"n": torch_file.Tensor(kind, elements)})
        done = cairn("diff", self.root / "a.pt", self.root / "b.pt", "--json", *arguments)
        self.assertEqual(done.returncode, code, done.stderr)
        return {entry["what"]: entry for entry in json.loads(done.stdout)["differences"]}

    def test_whole_numbers_are_compared_as_such(self):
        a, b = ("Long", [5, 2**60, -2**62]), ("Long", [5, 2**60 + 1, -2**62])
        values = self.of_elements(a, b)["values"]
        self.assertEqual((values["different"], values["max"], values["first"], values["a"]), (1, 1, [1], str(2**60)))
        self.of_elements(a, b, "--tolerance", "0.5")
        self.of_elements(a, b, "--tolerance", "1", code=FINE)
        ends = [-2**63, 2**63 - 1]
        values = self.of_elements(("Long", ends), ("Long", ends[::-1]))["values"]
        self.assertEqual((values["different"], values["max"]), (2, 2.0**64))

    def test_numbers_of_different_types(self):
        self.assertEqual(list(self.of_elements(("Long", [7, -1, 0, 2**53]), ("Double", [7, -1, 0, 2.0**53]))), ["dtype"])
        self.assertEqual(list(self.of_elements(("Float", [0.5, math.inf, math.nan]), ("Double", [0.5, math.inf, math.nan]))), ["dtype"])
        for whole, real in ((2**53 + 1, 2.0**53), (2**63 - 1, 2.0**63), (-1, -1 - 1e-12), (0, 5e-324), (3, math.inf)):
            self.assertEqual(self.of_elements(("Long", [whole]), ("Double", [real]))["values"]["different"], 1, whole)
            self.assertEqual(self.of_elements(("Double", [real]), ("Long", [whole]))["values"]["different"], 1, whole)
        self.assertEqual(self.of_elements(("Long", [2**53 + 1]), ("Double", [2.0**53]))["values"]["max"], 1)

    def test_unsigned_numbers_are_no_negative_ones(self):
        values = self.of_elements(("uint64", [2**64 - 1, 2**63]), ("Long", [-1, 2**63 - 1]))["values"]
        self.assertEqual((values["different"], values["max"], values["a"], values["b"]), (2, 2.0**64, str(2**64 - 1), "-1"))
        self.assertEqual(self.of_elements(("uint64", [2**64 - 1]), ("uint64", [2**64 - 2]))["values"]["max"], 1)
        self.of_elements(("uint64", [2**64 - 1]), ("uint64", [2**64 - 1]), code=FINE)

    def test_numbers_that_libtorch_lacks(self):
        for kind, bits, number in (("uint16", 65535, 65535), ("uint32", 2**32 - 1, 2**32 - 1), ("float8_e4m3fn", 0x7E, 448),
                                   ("float8_e5m2", 0x7B, 57344), ("float8_e8m0fnu", 128, 2)):
            self.assertEqual(list(self.of_elements((kind, [bits]), ("Double", [number]))), ["dtype"])
            values = self.of_elements((kind, [bits - 1]), ("Double", [number]))["values"]
            self.assertEqual((values["different"], values["b"]), (1, f"{number}.0"))
        values = self.of_elements(("float8_e5m2", [0x3C, 0x7C, 0x7D]), ("float8_e5m2", [0x40, 0x7C, 0x7E]))["values"]
        self.assertEqual((values["different"], values["one_nan"], values["max"], values["a"], values["b"]), (1, 0, 1, "1.0", "2.0"))
        values = self.of_elements(("float4_e2m1fn_x2", [0x21, 0x77]), ("float4_e2m1fn_x2", [0x22, 0x77]))["values"]
        self.assertEqual((values["different"], values["max"], values["a"], values["b"]), (1, 0.5, "(0.5, 1.0)", "(1.0, 1.0)"))
        self.of_elements(("uint16", [40000]), ("uint16", [40001]), "--tolerance", "1", code=FINE)

    def test_patterns_take_no_places(self):
        a, b = self.checkpoint(), self.checkpoint("--step", "8", name="b")
        self.differences("--tensors", "model.*", a, b, code=FINE)

    def test_keys_and_values(self):
        a, b = self.checkpoint("--complex"), self.checkpoint("--step", "8", name="b")
        found = self.differences(a, b)
        self.assertEqual({key: entry["what"] for key, entry in found.items()}, {"complex": "only_a", "step": "value"})
        self.assertEqual((found["step"]["a"], found["step"]["b"]), ("7", "8"))
        self.assertEqual({key: entry["what"] for key, entry in self.differences(b, a).items()}, {"complex": "only_b", "step": "value"})
        self.differences(a, b, "--tensors", "model.*", code=FINE)
        self.fails(WRONG_USE, "diff", a, b, "--tensors", "x*", text="no key")

    def test_shapes_of_pytorchs_checkpoints(self):
        found = self.differences(FIXTURES / "fsdp_even", FIXTURES / "fsdp_uneven")
        self.assertEqual(found["model.norm.weight"]["what"], "shape")
        self.differences(FIXTURES / "hsdp_2x2", FIXTURES / "hsdp_2x2", "--memory", "100", code=FINE)

    def test_damage_is_no_equality(self):
        source = self.fixture("threads")
        file = source / "__1_0.distcp"
        content = bytearray(file.read_bytes())
        _, shape, elements = read_safetensors(source / "expected.safetensors")[0]["t0"]
        quarter = len(elements) // 4  # which is what this rank wrote
        content[content.index(elements[quarter:2 * quarter])] ^= 1
        file.write_bytes(content)
        for memory in ("100", "1MiB"):
            whats = [entry["what"] for entry in self.differences(source, FIXTURES / "threads", "--memory", memory).values()]
            self.assertIn("unreadable", whats)


if __name__ == "__main__":
    run_tests()
