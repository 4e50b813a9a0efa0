#!/usr/bin/env python3
"""The example trainer: its losses are the same at any number of ranks, and after it was stopped and resumed at another number.

usage: char_lm_test.py CHAR_LM CAIRN_LAUNCH
"""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

CHAR_LM, CAIRN_LAUNCH = sys.argv[1], sys.argv[2]
STEPS = 5


def command(ranks, directory, *options):
    return [CAIRN_LAUNCH, "-n", str(ranks), "--", CHAR_LM, "--dir", str(directory), *map(str, options)]


def losses(text):
    """Step -> loss, as printed: equal texts are equal to the last bit."""
    return dict(re.findall(r"step (\d+) loss (\S+)", text))


class CharLm(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="cairn_char_lm_"))
        self.addCleanup(shutil.rmtree, self.root)

    def train(self, ranks, directory, *options, code=0):
        done = subprocess.run(command(ranks, directory, *options), capture_output=True, text=True)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return losses(done.stdout)

    def test_the_log_tells_how_far_saves_are_to_whoever_wants_to_know(self):
        wanted = {**os.environ, "CAIRN_LOG": "info"}
        arguments = ("--steps", 1, "--save-every", 1)
        done = subprocess.run(command(2, self.root / "told", *arguments), env=wanted, check=True, capture_output=True, text=True)
        for phase in ("planning on 2 ranks", "writing on 2 ranks", "publishing"):
            self.assertEqual(done.stderr.count(f"rank 0: saving '{self.root}/told/step_1': {phase}"), 1, done.stderr)
        self.assertIn(f"rank 0: saved '{self.root}/told/step_1' in ", done.stderr)
        unasked = {name: value for name, value in os.environ.items() if name != "CAIRN_LOG"}
        done = subprocess.run(command(2, self.root / "quiet", *arguments), env=unasked, check=True, capture_output=True, text=True)
        self.assertNotIn("step_1", done.stderr)

    @classmethod
    def reference(cls):
        """One rank, uninterrupted, nothing saved; without the launcher, as a plain program."""
        if not hasattr(cls, "losses_"):
            done = subprocess.run([CHAR_LM, "--steps", str(STEPS), "--save-every", "0"], check=True, capture_output=True, text=True)
            cls.losses_ = losses(done.stdout)
            assert len(cls.losses_) == STEPS
        return cls.losses_

    def test_losses_do_not_depend_on_the_number_of_ranks(self):
        self.assertEqual(len(set(self.reference().values())), STEPS, "it learns: no two steps have the same loss")
        for ranks in (1, 3, 4):  # two ranks: in the test of saving in the background
            self.assertEqual(self.train(ranks, self.root / str(ranks), "--steps", STEPS, "--save-every", 0), self.reference())

    def test_a_run_goes_on_at_another_number_of_ranks(self):
        self.train(4, self.root / "run", "--steps", 3, "--save-every", 2)
        self.assertEqual([path.name for path in (self.root / "run").iterdir()], ["step_2"])
        for ranks in (1, 2, 3):
            copy = shutil.copytree(self.root / "run", self.root / f"on_{ranks}")
            resumed = self.train(ranks, copy, "--steps", STEPS, "--save-every", 0, "--resume")
            self.assertEqual(resumed, {step: loss for step, loss in self.reference().items() if int(step) > 2})

    def test_saving_in_the_background_saves_what_was_trained_until_then(self):
        trained = self.train(2, self.root / "run", "--steps", STEPS, "--save-every", 1, "--async")
        self.assertEqual(trained, self.reference())
        for step in (1, STEPS - 1):
            alone = self.root / f"from_{step}"
            alone.mkdir()
            shutil.copytree(self.root / "run" / f"step_{step}", alone / f"step_{step}")
            resumed = self.train(1, alone, "--steps", step + 1, "--save-every", 0, "--resume")
            self.assertEqual(resumed, {str(step + 1): self.reference()[str(step + 1)]})

    def test_an_interrupted_run_loses_nothing_that_was_saved(self):
        directory = self.root / "run"
        with subprocess.Popen(command(4, directory, "--steps", 100_000, "--save-every", 1), stdout=subprocess.PIPE, text=True) as running:
            # Step 4 is printed after step 3 was saved.
            for line in running.stdout:
                if "step 4 loss" in line:
                    break
            running.send_signal(signal.SIGINT)
            running.stdout.read()
        self.assertNotEqual(running.returncode, 0)
        saved = max(int(path.parent.name.split("_")[1]) for path in directory.glob("step_*/.metadata"))
        self.assertGreaterEqual(saved, 3)
        resumed = self.train(2, directory, "--steps", saved + 2, "--save-every", 0, "--resume")
        self.assertEqual(sorted(map(int, resumed)), [saved + 1, saved + 2])
        expected = subprocess.run([CHAR_LM, "--steps", str(saved + 2), "--save-every", "0"], check=True, capture_output=True, text=True)
        for step, loss in resumed.items():
            self.assertEqual(loss, losses(expected.stdout)[step])

    def test_of_the_checkpoints_the_last_ones_stay(self):
        for options in ([], ["--async"]):
            directory = self.root / f"run{len(options)}"
            self.train(2, directory, "--steps", STEPS, "--save-every", 1, "--keep", 2, *options)
            self.assertEqual(sorted(path.name for path in directory.iterdir()), [f"step_{STEPS - 1}", f"step_{STEPS}"])

    def stopped_by(self, directory, send, *options):
        """Trains until `send` has sent a signal after step 3; returns the step of the only checkpoint, and what was printed."""
        with subprocess.Popen(command(2, directory, "--steps", 100_000, "--save-every", 0, *options),
                              stdout=subprocess.PIPE, text=True) as running:
            for line in running.stdout:
                if "step 3 loss" in line:
                    break
            send(running)
            printed = running.stdout.read()
        (checkpoint,) = directory.glob("step_*/.metadata")
        return int(checkpoint.parent.name.split("_")[1]), printed

    def test_a_signal_to_all_ranks_or_to_one_saves_the_step_that_they_are_at(self):
        def to_one(running):
            children = pathlib.Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
            os.kill(int(children[-1]), signal.SIGUSR1)
        for name, send, options in (("all", lambda running: running.send_signal(signal.SIGTERM), ["--async"]), ("one", to_one, [])):
            directory = self.root / name
            saved, printed = self.stopped_by(directory, send, *options)
            self.assertRegex(printed, f"stopped by signal [0-9]+ after step {saved}, which is saved")
            resumed = self.train(1, directory, "--steps", saved + 1, "--save-every", 0, "--resume")
            expected = subprocess.run([CHAR_LM, "--steps", str(saved + 1), "--save-every", "0"], check=True, capture_output=True, text=True)
            self.assertEqual(resumed, {str(saved + 1): losses(expected.stdout)[str(saved + 1)]})

    def test_a_damaged_checkpoint_is_passed_over(self):
        directory = self.root / "run"
        self.train(2, directory, "--steps", 2, "--save-every", 1)
        record = directory / "step_2" / ".metadata"
        record.write_bytes(record.read_bytes()[:-1])
        done = subprocess.run(command(2, directory, "--steps", 3, "--save-every", 0, "--resume"), capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("passed over step_2: ", done.stderr)
        self.assertEqual(losses(done.stdout), {step: loss for step, loss in self.reference().items() if step in ("2", "3")})

    def test_resuming_without_a_checkpoint_starts_anew(self):
        self.assertEqual(self.train(1, self.root / "none", "--steps", STEPS, "--save-every", 0, "--resume"), self.reference())

    def test_any_mode_resumes_from_any_other_at_any_number_of_ranks(self):
        def close(found, first):
            self.assertEqual(sorted(map(int, found)), list(range(first, STEPS + 1)))
            for step, loss in found.items():  # sums in another order: some units of the last place, which Adam carries on
                self.assertAlmostEqual(float(loss), float(self.reference()[step]), delta=1e-4)
        for mode, ranks, resumed in (("none", 2, (("full", 3), ("tp", 4))), ("full", 4, (("none", 1), ("replicate", 2), ("tp", 2))),
                                     ("replicate", 3, (("full", 1), ("tp", 3))), ("hybrid", 4, (("full", 2),)),
                                     ("tp", 3, (("none", 2), ("full", 3), ("replicate", 2), ("hybrid", 2)))):
            directory = self.root / mode
            self.train(ranks, directory, "--steps", 2, "--save-every", 2, "--parallel", mode)
            for other, others in resumed:
                close(self.train(others, directory, "--steps", STEPS, "--save-every", 0, "--resume", "--parallel", other), 3)
        close(self.train(4, self.root / "async", "--steps", STEPS, "--save-every", 2, "--async", "--parallel", "full"), 1)
        done = subprocess.run(command(5, self.root / "odd", "--parallel", "full"), capture_output=True, text=True)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("cannot be dealt out evenly to 5 ranks", done.stdout + done.stderr)
        done = subprocess.run(command(3, self.root / "odd", "--parallel", "hybrid"), capture_output=True, text=True)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("needs an even number of ranks, not 3", done.stdout + done.stderr)

    @unittest.skipUnless(os.environ.get("CAIRN_TEST_DEVICE") == "cuda", "needs a CUDA device, see tests/support/on_cuda.sh")
    def test_a_run_goes_on_between_host_memory_and_cuda_devices(self):
        for first, second in (("cuda", "cuda"), ("cpu", "cuda"), ("cuda", "cpu")):
            found = {}
            for device, options in ((first, ("--steps", 2, "--save-every", 2)),
                                    (second, ("--steps", STEPS, "--save-every", 0, "--resume"))):
                done = subprocess.run(command(1, self.root / (first + second), "--device", device, *options),
                                      capture_output=True, text=True)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                self.assertEqual("training on cuda:0" in done.stdout, device == "cuda", done.stdout)
                found.update(losses(done.stdout))
            self.assertEqual(len(found), STEPS)
            for step, loss in found.items():  # recurrent layers multiply with 10 bits (TF32) on devices
                self.assertAlmostEqual(float(loss), float(self.reference()[step]), delta=0.02)

    def test_wrong_use_is_told(self):
        done = subprocess.run([CHAR_LM, "--device", "cuda"], env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("finds no CUDA device", done.stderr)
        for options in (["--steps", "-1"], ["--what"], ["--parallel", "some"], ["--device", "some"]):
            done = subprocess.run([CHAR_LM, *options], capture_output=True, text=True)
            self.assertEqual(done.returncode, 2)
        done = subprocess.run([CHAR_LM, "--allow-injection"], env={**os.environ, "CAIRN_INJECT": "foo"}, capture_output=True, text=True)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertRegex(done.stderr, r"^char_lm: .*'?foo")
        done = subprocess.run([CHAR_LM, "--text", str(self.root / "none")], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("cannot read", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
