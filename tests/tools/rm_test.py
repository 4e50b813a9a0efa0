#!/usr/bin/env python3
"""`cairn rm` from outside. Started as cairn_command.py says."""

import subprocess

from cairn_command import cairn, Command, FINE, run_tests, without_rights, WRONG_USE


class Rm(Command):
    def setUp(self):
        super().setUp()
        for step in (10, 20, 30):
            self.checkpoint("--step", str(step), name=f"step_{step}")

    def rm(self, *arguments, code=FINE):
        names = [self.root / word if not word.startswith("-") else word for word in arguments]
        done = cairn("rm", *names, stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout if code == FINE else done.stderr

    def left(self):
        return sorted(path.name for path in self.root.iterdir())

    def test_it_removes_what_it_lists_and_nothing_else(self):
        self.assertRegex(self.rm("step_10", "step_30", "--dry-run"), r"step_10 .*\n.*step_30 |step_30 .*\n.*step_10 ")
        self.assertIn("--yes", self.rm("step_10", code=WRONG_USE))
        self.assertEqual(self.left(), ["step_10", "step_20", "step_30"])
        self.assertIn("2 checkpoints removed", self.rm("step_10", "step_30", "--yes"))
        self.assertEqual(self.left(), ["step_20"])

    def test_pinned_ones_stay(self):
        (self.root / "step_20" / ".pinned").touch()
        self.assertIn("--pinned", self.rm("step_10", "step_20", "--yes", code=WRONG_USE))
        self.assertEqual(self.left(), ["step_10", "step_20", "step_30"], "none of them")
        self.rm("step_20", "--yes", "--pinned")
        self.assertEqual(self.left(), ["step_10", "step_30"])

    def test_the_last_sound_one_stays(self):
        for step in (20, 30):
            next((self.root / f"step_{step}").glob("*.distcp")).unlink()
        self.assertIn("--last-sound", self.rm("step_10", "--yes", code=WRONG_USE))
        self.rm("step_20", "step_30", "--yes")
        self.assertEqual(self.left(), ["step_10"])
        self.rm("step_10", "--yes", "--last-sound")
        self.assertEqual(self.left(), [])

    def test_one_that_may_not_be_looked_into_is_not_taken_for_a_sound_one(self):
        self.root.chmod(0o755)
        (self.root / "step_30").chmod(0)
        self.addCleanup((self.root / "step_30").chmod, 0o755)
        try:
            done = cairn("rm", self.root / "step_10", self.root / "step_20", "--dry-run", preexec_fn=without_rights)
        except PermissionError:
            self.skipTest("only its owner may start cairn here")
        self.assertEqual(done.returncode, WRONG_USE, done.stderr)
        self.assertIn("--last-sound", done.stderr)

    def test_those_of_pytorch_stay(self):
        place = self.fixture("threads")
        (place / "notes.txt").write_text("precious")
        self.assertIn("--foreign", self.rm("threads", "--yes", code=WRONG_USE))
        self.assertTrue((place / ".metadata").exists())
        self.rm("threads", "--yes", "--foreign")
        self.assertEqual(sorted(path.name for path in place.iterdir()), ["expected.safetensors", "notes.txt"])

    def test_what_is_no_checkpoint(self):
        (self.root / "step_40").mkdir()
        (self.root / "link").symlink_to(self.root / "step_10")
        self.assertIn("nothing is there", self.rm("step_40", "--yes", code=WRONG_USE))
        self.assertIn("symbolic link", self.rm("link", "--yes", code=WRONG_USE))
        self.assertEqual(self.left(), ["link", "step_10", "step_20", "step_30", "step_40"])


if __name__ == "__main__":
    run_tests()
