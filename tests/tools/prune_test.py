#!/usr/bin/env python3
"""`cairn prune` from outside. Started as cairn_command.py says."""

import os
import pathlib
import pty
import shutil
import subprocess
import tempfile
import zlib

from cairn_command import CAIRN, cairn, Command, FINE, FOUND_BAD, run_tests, WRONG_USE


class Prune(Command):
    def setUp(self):
        super().setUp()
        for step, loss in ((10, 0.1), (20, 0.9), (30, 0.3), (40, 0.4)):
            self.checkpoint("--step", str(step), "--metadata", f"metric.loss={loss}", name=f"step_{step}")

    def prune(self, *options, code=FINE):
        done = cairn("prune", self.root, *options, stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def retract(self, name):
        """Leaves what a removal leaves that was killed after it had removed the record."""
        data = next((self.root / name).glob("*.distcp"))
        (self.root / name / (".removed-" + data.stem.split("_")[-1])).touch()
        (self.root / name / ".metadata").unlink()

    def left(self):
        return sorted(path.name for path in self.root.iterdir())

    def test_what_stays(self):
        for keep, stays in ((["last=2"], [30, 40]), (["every=20"], [20, 40]), (["best=1:loss"], [10, 40]),
                            (["best=1:loss:higher", "last=1"], [20, 40]), (["last=9"], [10, 20, 30, 40])):
            text = self.prune("--dry-run", *(word for one in keep for word in ("--keep", one))).stdout
            rows = [line.split() for line in text.splitlines() if line.startswith(("stays", "goes"))]
            self.assertEqual(sorted(row[1] for row in rows if row[0] == "stays"), [f"step_{step}" for step in stays], keep)
            self.assertEqual(len(rows), 4)
        self.assertEqual(len(self.left()), 4, "only shown")

    def test_a_metric_may_have_a_colon_in_its_name(self):
        for step, accuracy in ((50, 0.9), (60, 0.2), (70, 0.5)):
            self.checkpoint("--step", str(step), "--metadata", f"metric.eval:accuracy={accuracy}", name=f"step_{step}")
        for rule, stays in (("best=1:eval:accuracy:higher", [40, 50, 70]), ("best=1:eval:accuracy:lower", [40, 60, 70])):
            text = self.prune("--dry-run", "--keep", rule, "--keep", "every=40").stdout
            rows = [line.split() for line in text.splitlines() if line.startswith("stays")]
            self.assertEqual(sorted(row[1] for row in rows), [f"step_{step}" for step in stays], rule)

    def test_a_metric_that_no_checkpoint_has_is_not_taken_for_one_that_keeps_none(self):
        for keep in ("best=2:los", "best=2:accuracy:lower"):
            for last in ("last=1", "last=9"):
                self.assertIn("the metrics are: loss", self.prune("--keep", keep, "--keep", last, "--yes", code=WRONG_USE).stderr)
        self.assertIn('"higer" is neither higher nor lower', self.prune("--keep", "best=2:loss:higer", "--yes", code=WRONG_USE).stderr)
        self.assertEqual(len(self.left()), 4)

    def test_the_run_may_follow_the_options(self):
        done = cairn("prune", "--keep", "last=1", "--keep", "best=1:loss", self.root, "--yes", stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, FINE, done.stderr)
        self.assertEqual(self.left(), ["step_10", "step_40"])

    def test_it_removes_what_it_shows_and_nothing_else(self):
        self.fixture("single")
        self.checkpoint(name="mine")
        (self.root / "step_10" / ".pinned").touch()
        (self.root / "notes.txt").write_text("precious")
        self.assertIn("2 checkpoints removed", self.prune("--keep", "last=1", "--yes").stdout)
        self.assertEqual(self.left(), ["mine", "notes.txt", "single", "step_10", "step_40"])

    def test_the_newest_that_is_sound_stays(self):
        next((self.root / "step_40").glob("*.distcp")).unlink()
        self.prune("--keep", "last=1", "--yes")
        self.assertEqual(self.left(), ["step_30", "step_40"])

    def test_it_asks_first(self):
        self.assertIn("--yes", self.prune("--keep", "last=1", code=WRONG_USE).stderr)
        for answer, left in (("n\n", 4), ("\n", 4), ("y\n", 1)):
            master, slave = pty.openpty()
            process = subprocess.Popen([CAIRN, "prune", self.root, "--keep", "last=1"], stdin=slave, stdout=subprocess.PIPE, text=True)
            os.write(master, answer.encode())
            self.assertIn("Remove them? [y/N]", process.communicate()[0])
            self.assertEqual(process.returncode, FINE)
            os.close(slave)
            os.close(master)
            self.assertEqual(len(self.left()), left, answer)

    def test_leftovers(self):
        self.retract("step_20")
        (self.root / "step_10" / ".metadata").unlink()
        (self.root / "step_10" / (".attempt-cairn-" + 32 * "0" + "-00000000-1")).mkdir()
        self.assertIn("1 leftover removed", self.prune("--leftovers", "--yes").stdout)
        self.assertEqual(self.left(), ["step_10", "step_30", "step_40"], "a save may run in step_10")
        (self.root / "step_30" / ".metadata").rename(self.root / "step_30" / "__0.metadata")
        self.assertIn("nothing to remove", self.prune("--leftovers", "--dry-run").stdout)

    def test_data_without_a_record_stay(self):
        (self.root / "step_20" / ".metadata").unlink()
        self.assertIn("nothing to remove", self.prune("--leftovers", "--keep", "last=9", "--yes").stdout)
        self.assertIn("step_20", self.left())
        self.assertRegex(cairn("ls", self.root).stdout, r"leftover: step_20, .*no commit record")

    def test_damaged_ones_go_after_they_were_read_again(self):
        def flip(name):
            data = next((self.root / name).glob("*.distcp"))
            content = bytearray(data.read_bytes())
            content[len(content) // 2] ^= 1
            data.write_bytes(content)
            return data.stem.split("_")[-1]

        next((self.root / "step_10").glob("*.distcp")).unlink()
        (self.root / "step_20" / ".damaged").write_text(flip("step_20") + "\nas a restore has noted\n")
        whole = next((self.root / "step_30").glob("*.distcp")).stem.split("_")[-1]
        (self.root / "step_30" / ".damaged").write_text(whole + "\nbut it was mended\n")
        flip("step_40")  # nobody knows
        self.checkpoint("--step", "50", name="step_50")
        record = bytearray((self.root / "step_50" / ".metadata").read_bytes())
        record[-16:-12] = (99).to_bytes(4, "little")
        record[-4:] = zlib.crc32(record[:-4]).to_bytes(4, "little")
        (self.root / "step_50" / ".metadata").write_bytes(record)  # of a newer Cairn
        self.assertIn("as a restore has noted", cairn("ls", self.root).stdout)
        self.prune("--damaged", "--dry-run")
        self.assertEqual(len(self.left()), 5)
        self.assertIn("2 checkpoints removed", self.prune("--damaged", "--yes").stdout)
        self.assertEqual(self.left(), ["step_30", "step_40", "step_50"])
        self.assertFalse((self.root / "step_30" / ".damaged").exists())

    def test_links_are_not_followed(self):
        outside = pathlib.Path(tempfile.mkdtemp(prefix="cairn_tools_"))
        self.addCleanup(shutil.rmtree, outside)
        for path in (self.root / "step_40").iterdir():
            if path.suffix == ".distcp":
                shutil.copy(path, outside)
        kept = sorted(outside.iterdir())
        self.assertTrue(kept)
        (self.root / "step_50").symlink_to(outside)
        (self.root / "step_60").mkdir()
        (self.root / "step_60" / kept[0].name).symlink_to(outside / kept[0].name)
        (self.root / "step_60" / (".removed-" + kept[0].stem.split("_")[-1])).touch()
        self.assertIn("1 leftover removed", self.prune("--keep", "last=4", "--leftovers", "--yes").stdout)
        self.assertEqual(sorted(outside.iterdir()), kept)
        self.assertEqual(self.left(), ["step_10", "step_20", "step_30", "step_40", "step_50"])

    def test_a_leftover_that_stays_is_not_called_removed(self):
        self.retract("step_20")
        (self.root / "step_20" / "notes.txt").write_text("precious")
        done = self.prune("--leftovers", "--yes", code=FOUND_BAD)
        self.assertIn("0 leftovers removed", done.stdout)
        self.assertIn("step_20 not removed: it holds files that Cairn did not make", done.stderr)
        self.assertEqual([path.name for path in (self.root / "step_20").iterdir()], ["notes.txt"])

    def test_what_cannot_be_removed_is_said(self):
        (self.root / "step_10" / (".attempt-cairn-" + 32 * "0" + "-00000000-1")).mkdir()
        done = self.prune("--keep", "last=1", "--yes", code=FOUND_BAD)
        self.assertIn("step_10 not removed: a save to it has begun", done.stderr)
        self.assertEqual(self.left(), ["step_10", "step_40"])

    def test_wrong_use(self):
        for options in ([], ["--keep", "all"], ["--keep", "last=0"], ["--keep", "every=x"], ["--keep", "best=2"], ["--keep", "best=2:"],
                        ["--keep", "best=2::higher"], ["--keep", "last=1", "--keep", "last=2"], ["--keep", "every=2", "--keep", "every=1"],
                        ["--keep", "best=1:loss", "--keep", "best=2:loss:higher"]):
            self.prune(*options, "--yes", code=WRONG_USE)
        self.fails(WRONG_USE, "prune", self.root / "step_10", "--keep", "last=1", text="not a run")
        self.assertEqual(len(self.left()), 4)


if __name__ == "__main__":
    run_tests()
