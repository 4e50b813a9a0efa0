#!/usr/bin/env python3
"""`cairn merge`, of what ranks saved for themselves, from outside. Started as cairn_command.py says."""

import json
import pathlib
import shutil
import subprocess

from cairn_command import CAIRN, cairn, Command, FINE, FOUND_BAD, run_tests, WRONG_USE

PROGRAMS = pathlib.Path(CAIRN).parent


class Merge(Command):
    def setUp(self):
        super().setUp()
        self.merged = self.root / "merged"

    def parts(self, *options, name="parts"):
        return self.checkpoint("--parts", *options, name=name)

    def merge(self, source, *options):
        done = cairn("merge", source, self.merged, *options)
        self.assertEqual(done.returncode, FINE, done.stderr)
        return done

    def refused(self, source, *options, text, code=FOUND_BAD):
        done = self.fails(code, "merge", source, self.merged, *options, text=text)
        self.assertFalse((self.merged / ".metadata").exists())
        return done.stderr

    def same(self, source, other):
        done = cairn("diff", source, other)
        self.assertEqual(done.returncode, FINE, done.stdout + done.stderr)

    def test_merged_parts_equal_what_one_save_of_all_ranks_gives(self):
        ordinary = self.checkpoint("--more")
        parts = self.parts()
        self.same(parts, ordinary)
        self.merge(parts)
        self.same(self.merged, ordinary)
        self.assertEqual(len(list(self.merged.glob("__*"))), 4)
        self.merge(parts, "--force", "--world", "3")
        self.same(self.merged, ordinary)
        self.assertEqual(cairn("verify", self.merged).returncode, FINE)

    def test_parts_are_no_run(self):
        parts = self.parts()
        for command in ("ls", "latest"):
            self.fails(WRONG_USE, command, parts, text="is a checkpoint, not a run: each rank saved its part for itself there: `cairn merge`")

    def test_compressed_parts_are_merged(self):
        self.merge(self.parts("--zstd"))
        self.same(self.merged, self.checkpoint("--more"))

    def test_a_missing_part_is_named_and_gaps_refused(self):
        parts = self.parts()
        shutil.rmtree(parts / "rank_1_of_4")
        told = self.refused(parts, text="rank 1 has no part")
        for key in ("grid", "line", "cube", "short"):
            self.assertRegex(told, f"{key}.* lacks data in .*; rank 1 has no part")
        shutil.copytree(parts, self.root / "fewer")
        shutil.rmtree(self.root / "fewer" / "rank_0_of_4")
        self.refused(self.root / "fewer", "--exclude", "[glc][riu][inb]*", text="short")
        done = self.merge(parts, "--exclude", "[glc][riu][inb]*", "--exclude", "short")
        self.assertIn("rank 1 has no part", done.stderr)
        keys = cairn("inspect", self.merged).stdout
        self.assertIn("copy", keys)
        self.assertNotIn("grid", keys)

    def test_overlapping_parts_are_refused(self):
        self.assertRegex(self.refused(self.parts("--overlap"), text="overlapping"), "rows")

    def test_values_that_differ_between_ranks_are_named(self):
        parts = self.parts("--seeds")
        self.refused(parts, text="seed: its value on ranks 2, 3 differs from that on rank 0: 0 on rank 0, 1 on rank 2")
        self.merge(parts, "--exclude", "seed")

    def test_keys_that_differ_in_kind_between_ranks_are_named_and_can_be_excluded(self):
        parts = self.parts("--odd")
        told = self.refused(parts, text="size: it is ")
        self.assertRegex(told, r"size: it is a tensor .*\[3\].* on rank 0, and .*\[2\].* on rank 1")
        self.assertRegex(told, "type: it is .*float32.* on rank 0, and .*float64.* on rank 1")
        self.assertRegex(told, "kind: it is a tensor .* on rank 0, and a value on rank 1")
        self.assertRegex(told, r"none: it is .*\[3\].* on rank 0, and .*\[9\].* on rank 1")
        self.assertRegex(told, r"pa\.th: its path .* on rank 1 differs from that on rank 0")
        excluded = [part for key in ("size", "type", "kind", "none", "pa.*") for part in ("--exclude", key)]
        self.merge(parts, *excluded)
        self.same(self.merged, self.checkpoint("--more"))

    def test_a_value_damaged_on_one_rank_is_named_as_damaged(self):
        parts = self.parts()
        data = next((parts / "rank_3_of_4").glob("*.distcp"))
        content = bytearray(data.read_bytes())
        at = content.rindex(b"K\x03.")  # the pickled 3 of "epoch"
        content[at + 1] ^= 4
        data.write_bytes(content)
        done = cairn("merge", parts, self.merged)
        self.assertEqual(done.returncode, FOUND_BAD)
        self.assertRegex(done.stderr, "rank_3_of_4.*(damage|checksum)")

    def test_a_listing_of_parts_needs_only_the_records(self):
        parts = self.parts()
        for data in parts.glob("*/*.distcp"):
            data.unlink()
        done = cairn("inspect", parts)
        self.assertEqual(done.returncode, FINE, done.stderr)
        self.assertIn("epoch", done.stdout)

    def test_merge_neither_onto_the_parts_nor_below_them(self):
        parts = self.parts()
        for place in (parts, parts / "merged", parts / ".." / "parts" / "rank_0_of_4"):
            self.fails(WRONG_USE, "merge", parts, place, text="give another place")
        self.assertFalse((parts / ".metadata").exists())

    def test_parts_of_different_saves_are_refused(self):
        parts, later = self.parts(), self.parts("--step", "8", name="later")
        shutil.rmtree(parts / "rank_2_of_4")
        shutil.copytree(later / "rank_2_of_4", parts / "rank_2_of_4")
        told = self.refused(parts, text="are of different saves: ")
        self.assertRegex(told, r"step 7 of ranks 0, 1, 3 in world \w{8}, save number 1 of step 8 of rank 2 in world \w{8}")

    def test_parts_of_two_saves_of_one_step_are_refused(self):
        parts = self.parts()
        shutil.copytree(parts / "rank_2_of_4", self.root / "first")
        self.parts()
        shutil.rmtree(parts / "rank_2_of_4")
        shutil.copytree(self.root / "first", parts / "rank_2_of_4")
        told = self.refused(parts, text="save number 1 of step 7 of rank 2 in world ")
        self.assertIn(", save number 2 of step 7 of ranks 0, 1, 3 in world ", told)
        self.assertIn("load its part and save it at a new place", told)

    def test_parts_of_one_step_that_a_restarted_job_saved_are_refused(self):
        parts, again = self.parts(), self.parts(name="again")
        shutil.rmtree(parts / "rank_2_of_4")
        shutil.copytree(again / "rank_2_of_4", parts / "rank_2_of_4")
        told = self.refused(parts, text="are of different saves: ")
        self.assertRegex(told, r"save number 1 of step 7 of rank 2 in world [0-9a-f]{8}\b")
        self.assertRegex(told, r"save number 1 of step 7 of ranks 0, 1, 3 in world [0-9a-f]{8}\b")

    def test_parts_of_two_worlds_are_refused(self):
        parts = self.parts()
        shutil.copytree(parts / "rank_0_of_4", parts / "rank_0_of_2")
        self.refused(parts, text="remove those of one world")

    def test_a_checkpoint_of_all_ranks_is_nothing_to_merge(self):
        self.refused(self.checkpoint(), text="nothing to merge", code=WRONG_USE)

    def test_a_damaged_part_is_found(self):
        parts = self.parts()
        data = next((parts / "rank_3_of_4").glob("*.distcp"))
        content = bytearray(data.read_bytes())
        content[len(content) // 2] ^= 1
        data.write_bytes(content)
        self.assertEqual(cairn("verify", parts).returncode, FOUND_BAD)

    def test_parts_are_verified_and_no_leftovers(self):
        self.parts(name="step_9")
        done = cairn("verify", self.root / "step_9")
        self.assertEqual(done.returncode, FINE, done.stdout)
        self.assertRegex(cairn("ls", self.root).stdout, "step_9, .*cairn merge")
        self.assertEqual(cairn("prune", self.root, "--leftovers", "--yes").returncode, FINE)
        self.merge(self.root / "step_9")

    def test_verify_names_the_ranks_whose_parts_are_missing(self):
        run = self.root / "run"
        run.mkdir()
        shutil.copytree(self.parts(), run / "step_9")
        self.assertEqual(cairn("verify", run).returncode, FINE)
        shutil.rmtree(run / "step_9" / "rank_1_of_4")
        (run / "step_9" / "rank_3_of_4" / ".metadata").unlink()
        for place in (run / "step_9", run):
            done = cairn("verify", place)
            self.assertEqual(done.returncode, FOUND_BAD, done.stdout)
            self.assertIn(f"bad: {run / 'step_9'}: no part of ranks 1, 3 is there, of 4 ranks", done.stdout)
            self.assertIn("2 of 3 checkpoints are fine", done.stdout)
        told = json.loads(cairn("verify", run, "--json").stdout)
        self.assertEqual([one["fine"] for one in told], [True, True, False])
        self.assertIn("ranks 1, 3", told[2]["error"])

    def launch(self, *arguments, ranks=4, options=()):
        return subprocess.run([PROGRAMS / "cairn-launch", "-n", str(ranks), "--keep-going", *options, "--",
                               PROGRAMS / "cairn_fault_ranks", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def test_any_number_of_ranks_loads_what_was_merged(self):
        saved, merged = self.root / "saved", self.root / "all"
        merged.mkdir()
        done = self.launch("own", saved, "save", "-1")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.merged = merged / "checkpoint"
        self.merge(saved / "checkpoint")
        for ranks in (2, 3):
            done = self.launch("check", merged, ranks=ranks, options=["--no-prefix"])
            self.assertIn(f"{merged} 2", done.stdout)

    def test_a_rank_killed_while_it_saves_keeps_its_former_part(self):
        saved = self.root / "saved"
        done = self.launch("own", saved, "save", "2", options=["--inject", "kill@store:publish,nth=2"])
        self.assertRegex(done.stdout, "rank 2 ended by SIGKILL")
        self.assertRegex(done.stdout, "ranks 0, 1, 3 exited with 0")
        done = self.launch("own", saved, "load", "-1")
        self.assertRegex(done.stdout, r"\b2\b.*generation 1")
        self.assertIn("generation 2", done.stdout)
        told = self.refused(saved / "checkpoint", text="are of different saves: ")
        self.assertRegex(told, r"save number 1 of step 1 of rank 2 in world (\w{8}), save number 2 of step 2 of ranks 0, 1, 3 in world \1")


if __name__ == "__main__":
    run_tests()
