#!/usr/bin/env python3
"""`cairn cp` from outside. Started as cairn_command.py says."""

import json
import os
import resource
import shutil

from cairn_command import cairn, Command, FINE, FIXTURES, FOUND_BAD, run_tests, WRONG_USE


class Cp(Command):
    def setUp(self):
        super().setUp()
        self.source = self.checkpoint("--step", "7")

    def inspected(self, place):
        return json.loads(cairn("inspect", place, "--json").stdout)

    def test_the_copy_is_sound_and_has_the_same_content(self):
        target = self.root / "other" / "step_7"
        done = cairn("cp", self.source, target)
        self.assertEqual(done.returncode, FINE, done.stderr)
        self.assertRegex(done.stdout, r"/other/step_7: 1 file, [0-9.]+ KiB\n")
        self.assertEqual(cairn("verify", target).returncode, FINE)
        self.assertEqual(cairn("diff", self.source, target).returncode, FINE)
        before, after = self.inspected(self.source), self.inspected(target)
        self.assertNotEqual(before["save_id"], after["save_id"])
        for same in ("step", "sequence", "world_size", "user_metadata"):
            self.assertEqual(before[same], after[same], same)

    def test_what_is_there_stays(self):
        target = self.checkpoint("--step", "8", name="other/step_8")
        before = self.inspected(target)["save_id"]
        self.fails(WRONG_USE, "cp", self.source, target, text="a checkpoint exists already")
        self.fails(WRONG_USE, "cp", self.source, self.source, text="a checkpoint exists already")
        self.fails(WRONG_USE, "cp", self.source, target.parent, text="such as %s/step_7" % target.parent)
        self.fails(WRONG_USE, "cp", self.source, self.source / "below", text="is within the checkpoint itself")
        for others in (FIXTURES.parent / "pytorch-2.14" / "rank_local", FIXTURES.parent / "torch_checkpointing-0.1.0" / "world_1"):
            place = self.root / others.name
            shutil.copytree(others, place)
            self.fails(WRONG_USE, "cp", self.source, place, text="a checkpoint exists already")
            self.fails(WRONG_USE, "convert", self.source, place, "--to", "dcp", text="which would be hidden")
            self.assertEqual(sorted(os.listdir(place)), sorted(os.listdir(others)))
        self.assertEqual(self.inspected(target)["save_id"], before)
        self.assertEqual(sorted(path.name for path in target.parent.iterdir()), ["step_8"])

    def test_what_cannot_be_copied(self):
        self.fails(WRONG_USE, "cp", self.root / "nowhere", self.root / "copy", text="nothing is there")
        self.fails(FOUND_BAD, "cp", FIXTURES / "nested", self.root / "copy", text="cairn convert --to dcp")
        self.assertFalse((self.root / "copy").exists())

    def test_a_disk_that_is_full_leaves_nothing(self):
        def little():
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        self.fails(FOUND_BAD, "cp", self.source, self.root / "copy", text="__0_0_", preexec_fn=little)
        self.assertFalse((self.root / "copy").exists())

    def test_tiers_have_the_copy_in_both_places(self):
        variables = {**os.environ, "CAIRN_TIERS": f"fast={self.root}/near|{self.root}/far"}
        done = cairn("cp", self.source, "tiered://fast/run/step_7", env=variables)
        self.assertEqual(done.returncode, FINE, done.stderr)
        for tier in ("near", "far"):
            self.assertEqual(cairn("diff", self.source, self.root / tier / "run" / "step_7").returncode, FINE)


if __name__ == "__main__":
    run_tests()
