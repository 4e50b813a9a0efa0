#!/usr/bin/env python3
"""`cairn diff` from outside. Started as cairn_command.py says."""

import json

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
