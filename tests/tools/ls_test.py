#!/usr/bin/env python3
"""`cairn ls` from outside. Started as cairn_command.py says."""

import json

from cairn_command import cairn, Command, FINE, FOUND_BAD, run_tests, without_rights, WRONG_USE


class Ls(Command):
    def setUp(self):
        super().setUp()
        for name, step in (("step_10", 10), ("step_20", 20), ("step_5", 5)):  # in this order: going back is going on
            self.checkpoint("--step", str(step), name=name)

    def told(self, code=FINE):
        done = cairn("ls", self.root, "--json")
        self.assertEqual(done.returncode, code, done.stderr)
        return json.loads(done.stdout)

    def test_the_last_to_be_committed_comes_first(self):
        told = self.told()
        self.assertEqual([entry["name"] for entry in told["checkpoints"]], ["step_5", "step_20", "step_10"])
        self.assertEqual((told["latest"], told["latest_sound"]), ("step_5", "step_5"))
        first = told["checkpoints"][0]
        self.assertEqual((first["step"], first["sequence"], first["world_size"], first["writer"]), (5, 3, 1, "cairn"))
        self.assertEqual(first["bytes"], sum(path.stat().st_size for path in (self.root / "step_5").glob("*.distcp")))
        self.assertAlmostEqual(first["saved_at"], (self.root / "step_5" / ".metadata").stat().st_mtime, places=3)
        lines = cairn("ls", self.root).stdout.splitlines()
        self.assertRegex(lines[1], r"^step_5 +5 +\d.* 1 +.* sound, latest$")
        self.assertEqual(len(lines), 5)

    def test_bytes_that_earlier_checkpoints_have_written_are_counted_apart(self):
        self.checkpoint("--step", "30", "--donor", self.root / "step_28", name="step_30")
        entries = {entry["name"]: entry for entry in self.told()["checkpoints"]}
        self.assertEqual(entries["step_28"]["shared_bytes"], 0)
        shared = sum(path.stat().st_size for path in (self.root / "step_30").glob("*.distcp") if path.stat().st_nlink > 1)
        self.assertGreater(shared, 280_000)
        self.assertEqual(entries["step_30"]["shared_bytes"], shared)
        self.assertRegex(cairn("ls", self.root).stdout, r"step_30 .* sound, latest, \d.* shared with earlier ones")

    def test_a_damaged_one_is_named_and_passed_over(self):
        next((self.root / "step_5").glob("*.distcp")).unlink()
        record = self.root / "step_20" / ".metadata"
        record.write_bytes(record.read_bytes()[:-10])
        told = self.told(code=FOUND_BAD)
        self.assertEqual((told["latest"], told["latest_sound"]), ("step_5", "step_10"))
        self.assertEqual({entry["name"]: entry["sound"] for entry in told["checkpoints"]},
                         {"step_5": False, "step_20": False, "step_10": True})
        done = cairn("ls", self.root)
        self.assertEqual(done.returncode, FOUND_BAD, done.stderr)
        self.assertRegex(done.stdout, r"step_5 +5 +\d.* 1 +.* DAMAGED: cannot find the size of __0_\S*: No such file.*, latest")
        self.assertNotIn(str(self.root), done.stdout)
        self.assertRegex(done.stdout, "step_10 .*sound, latest that is sound")

    def test_no_step_of_a_removal_is_damage(self):
        place = self.root / "step_20"
        data, record = next(place.glob("*.distcp")), place / ".metadata"
        mark = place / (".removed-" + data.name[6:].removesuffix(".distcp"))
        for step, leftovers in ((mark.touch, []), (record.unlink, ["step_20"]), (data.unlink, ["step_20"]), (mark.unlink, ["step_20"]),
                                (place.rmdir, [])):
            step()
            told = self.told()
            with self.subTest(step):
                self.assertEqual([entry["name"] for entry in told["checkpoints"] if not entry["sound"]], [])
                self.assertEqual([entry["name"] for entry in told["leftovers"]], leftovers)
                self.assertEqual([entry["name"] for entry in told["leftovers"] if entry.get("unrecorded")], [])
                self.assertNotIn("without", cairn("ls", self.root).stdout)

    def test_leftovers_are_told_from_checkpoints(self):
        (self.root / "step_20" / ".metadata").unlink()
        (self.root / "step_10" / ".metadata").unlink()
        (self.root / "step_10" / (".attempt-cairn-" + 32 * "0" + "-00000000-1")).mkdir()
        (self.root / "failure-x").mkdir()
        (self.root / "notes").mkdir()
        told = self.told()
        self.assertEqual([entry["name"] for entry in told["checkpoints"]], ["step_5"])
        self.assertEqual([(entry["name"], entry["open"]) for entry in told["leftovers"]], [("step_10", True), ("step_20", False)])
        self.assertEqual(told["failure_reports"], ["failure-x"])
        text = cairn("ls", self.root).stdout
        self.assertIn("leftover: step_20", text)
        self.assertEqual([entry["by_ranks"] for entry in told["leftovers"]], [False, False])
        (self.root / "step_20" / "rank_0_of_1").mkdir()
        (self.root / "step_20" / "rank_0_of_1" / ".metadata").touch()
        self.assertEqual([entry["by_ranks"] for entry in self.told()["leftovers"]], [False, True])
        self.assertIn("cairn trace", text)

    def test_one_that_may_not_be_looked_into_hides_no_other(self):
        self.root.chmod(0o755)
        (self.root / "step_20").chmod(0)
        self.addCleanup((self.root / "step_20").chmod, 0o755)
        try:
            done = cairn("ls", self.root, preexec_fn=without_rights)
        except PermissionError:
            self.skipTest("only its owner may start cairn here")
        self.assertEqual(done.returncode, FOUND_BAD, done.stderr)
        self.assertRegex(done.stdout, r"step_20 .*DAMAGED: .*permission")
        for step in (5, 10):
            self.assertRegex(done.stdout, rf"step_{step} .*sound$|step_{step} .*sound\n")
        self.assertNotIn("latest", done.stdout)  # restore_latest throws

    def test_pinned_ones_and_those_of_pytorch(self):
        (self.root / "step_10" / ".pinned").touch()
        self.fixture("threads")
        told = {entry["name"]: entry for entry in self.told()["checkpoints"]}
        self.assertEqual([name for name in told if told[name]["pinned"]], ["step_10"])
        self.assertEqual((told["threads"]["writer"], told["threads"]["world_size"], told["threads"]["sound"]), ("pytorch", 4, True))
        self.assertIsNone(told["threads"]["step"])

    def test_the_mark_and_latest_name_what_restore_latest_takes(self):
        self.fixture("threads").rename(self.root / "step_200")
        told = self.told()
        self.assertEqual((told["latest"], told["latest_sound"], told["checkpoints"][0]["step"]), ("step_200", "step_200", 200))
        self.assertRegex(cairn("ls", self.root).stdout, r"step_200 +200 .*, latest, PyTorch's")
        self.assertEqual(cairn("latest", self.root).stdout, f"{self.root}/step_200\n")
        next((self.root / "step_200").glob("*.distcp")).unlink()
        self.assertEqual(cairn("latest", self.root).stdout, f"{self.root}/step_5\n")
        # Whether PyTorch saved step 7 before or after Cairn's step 5 is unknown: it comes last.
        (self.root / "step_200").rename(self.root / "step_7")
        self.assertEqual(self.told(code=FOUND_BAD)["latest"], "step_5")
        (self.root / "step_20" / ".metadata").unlink()
        self.fails(FOUND_BAD, "latest", self.root, text="data files without a commit record (.metadata) in step_20")

    def test_no_run(self):
        self.fails(WRONG_USE, "ls", self.root / "step_5", text="is a checkpoint, not a run")
        self.fails(WRONG_USE, "ls", self.root / "nowhere", text="nothing is there")
        (self.root / "empty").mkdir()
        self.fails(WRONG_USE, "ls", self.root / "empty", text="the directory is empty")

    def test_a_run_is_no_checkpoint(self):
        self.fails(FOUND_BAD, "inspect", self.root, text=f"there is one below it, at {self.root}/step_")


if __name__ == "__main__":
    run_tests()
