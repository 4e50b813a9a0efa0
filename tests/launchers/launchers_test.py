#!/usr/bin/env python3
"""The launchers' own programs start the example trainer: the ranks make one world, and no rank ever trains alone.

usage: launchers_test.py CLASS CHAR_LM EXAMPLES [unittest arguments]

CLASS is one of the test classes below. The program ends with 77 if what the class needs is not installed. CAIRN_TORCHRUN is the command
that runs torchrun (default: torchrun in PATH).
"""

import contextlib
import functools
import os
import pathlib
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

import slurm_cluster

CLASS, CHAR_LM, EXAMPLES = sys.argv[1], os.path.abspath(sys.argv[2]), pathlib.Path(sys.argv[3]).resolve()
RANKS = 4
STEPS = 4
JOB_STEPS = 16  # a job that is killed after step 4 is then in the middle
SKIPPED = 77
LAUNCHERS_OWN = re.compile(r"^(OMPI|PMI|PMIX|MPI|HYD|SLURM|TORCHELASTIC|GROUP|ROLE|LOCAL)_|^(RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT)$")


def losses(text):
    """Step -> loss, as printed: equal texts are equal to the last bit."""
    return dict(re.findall(r"step (\d+) loss (\S+)", text))


def free_port():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        return str(holder.getsockname()[1])


def end_group(process):
    """Ends a process, which leads a session, and all of the session."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def read_until(stream, words):
    """Reads lines up to the one with these words; returns them."""
    lines = []
    for line in stream:
        lines.append(line)
        if words in line:
            return "".join(lines)
    raise AssertionError(f"'{words}' does not come:\n{''.join(lines)}")


def kill_ranks(directory, variable):
    """Kills the ranks that train in this directory and have this variable, as NAME=VALUE."""
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            arguments = (process / "cmdline").read_bytes().split(b"\0")
            if str(directory).encode() in arguments and variable.encode() in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)


class Launched(unittest.TestCase):
    """What every launcher must do. Subclasses give the command that starts `ranks` ranks."""
    needs = ()
    reference_ = {}

    @classmethod
    def missing(cls):
        absent = [program for program in cls.needs if shutil.which(program) is None]
        return f"{absent[0]} is not installed" if absent else ""

    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="cairn_launchers_"))
        self.addCleanup(shutil.rmtree, self.root)
        self.environment = {name: value for name, value in os.environ.items() if not LAUNCHERS_OWN.match(name) or name == "SLURM_CONF"}
        self.environment.update(OMP_NUM_THREADS="1", CAIRN_LOG="info")

    def run_command(self, command, **variables):
        return subprocess.run([str(word) for word in command], env={**self.environment, **variables}, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, check=False)

    def trainer(self, *options, steps=STEPS):
        return [CHAR_LM, "--dir", self.root / "run", "--steps", steps, "--save-every", 2, *options]

    def reference(self, steps=STEPS):
        """The losses of one process alone, which no number of ranks may change."""
        if steps not in self.reference_:
            done = self.run_command([CHAR_LM, "--steps", steps, "--save-every", 0])
            self.assertEqual(done.returncode, 0, done.stderr)
            self.reference_[steps] = losses(done.stdout)
        return self.reference_[steps]

    def check_one_world(self, done, ranks=RANKS, steps=STEPS):
        said = done.stdout + done.stderr
        self.assertEqual(done.returncode, 0, said)
        self.assertEqual(len(re.findall(r"step \d+ loss", done.stdout)), steps, "each step is trained once: " + said)
        self.assertEqual(losses(done.stdout), self.reference(steps))
        planning = f"step_2': planning on {ranks} ranks" if ranks > 1 else "step_2': planning"
        self.assertEqual(said.count(planning), 1, said)
        self.assertEqual(sorted(path.name for path in (self.root / "run").iterdir()), [f"step_{step}" for step in range(2, steps + 1, 2)])

    def check_refused(self, done, *named):
        said = done.stdout + done.stderr
        self.assertNotEqual(done.returncode, 0, said)
        self.assertNotIn("loss", done.stdout, "a rank trained alone: " + said)
        for name in named:
            self.assertIn(name, said)
        self.assertFalse((self.root / "run").exists(), said)

    def start_job(self, script, *arguments, output=subprocess.PIPE, **variables):
        """Starts a job of examples/jobs that trains for JOB_STEPS steps. It ends with the test."""
        command = [EXAMPLES / "jobs" / script, *arguments, *self.trainer("--resume", steps=JOB_STEPS)]
        with open(self.log(), "ab") as log:
            job = subprocess.Popen([str(word) for word in command], env={**self.environment, **variables}, stdin=subprocess.DEVNULL,
                                   stdout=output, stderr=log, text=True, start_new_session=True)
        self.addCleanup(end_group, job)
        return job

    def log(self):
        """The standard error of jobs."""
        return self.root / "log"

    def check_resumed(self, printed, ranks):
        """The whole output of a job: each step has the same loss each time, at any number of ranks. `ranks`: of the starts."""
        said = printed + self.log().read_text()
        trained = re.findall(r"step (\d+) loss (\S+)", printed)
        for step, loss in trained:
            self.assertEqual(loss, self.reference(JOB_STEPS)[step], f"step {step}\n{said}")
        self.assertEqual(trained[-1][0], str(JOB_STEPS), said)
        planned = [int(size) for size in re.findall(r"planning on (\d+) ranks", said)]
        self.assertEqual([size for i, size in enumerate(planned) if i == 0 or size != planned[i - 1]], ranks, said)
        self.assertIn("resumed from", said)


def open_mpi_version():
    """The major number."""
    return int(re.search(r"\((?:Open MPI|OpenRTE)\) (\d+)", subprocess.run(["mpirun.openmpi", "--version"], capture_output=True, text=True,
                                                              check=True).stdout)[1])


class OpenMpi(Launched):
    needs = ("mpirun.openmpi",)

    def setUp(self):
        super().setUp()
        self.environment["TMPDIR"] = str(self.root)  # from version 5 on, an mpirun that was killed leaves a directory in the way of others

    @staticmethod
    def mpirun(ranks, *options):
        return ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-np", ranks, *options]

    def agent(self):
        """A remote shell that takes every host for this machine under another name, unless the host is said to be dead.

        Since version 5, Open MPI takes hosts of one name for one. Daemons of one machine would make the same directory for temporary files at the same
        time, so each host has its own.
        """
        agent = self.root / "agent"
        own_name = ""
        if open_mpi_version() >= 5:
            own_name = "unshare --uts" if os.geteuid() == 0 else "unshare --map-root-user --uts"
            if subprocess.run([*own_name.split(), "true"], capture_output=True, check=False).returncode != 0:
                self.skipTest("this machine makes no UTS namespaces")
        rename = "hostname $name; " if own_name else ""
        agent.write_text(f"""#!/bin/bash
            [ ! -e "{self.root}/dead.$1" ] || exit 255
            export TMPDIR="{self.root}/on.$1"
            mkdir -p "$TMPDIR"
            name=node${{1##*.}}
            shift
            exec {own_name} bash -c "{rename}$*"
            """)
        agent.chmod(0o755)
        return agent

    @staticmethod
    def remote_options():
        """Makes mpirun start its daemons through the agent. Since version 5 it does so anyway, and refuses the loopback interface."""
        return ["--mca", "plm", "rsh", "--mca", "oob_tcp_if_include", "lo"] if open_mpi_version() < 5 else []

    def on_two_nodes(self, *options):
        """Four ranks. No --oversubscribe, with which version 5 starts all of them on the first node."""
        return ["mpirun.openmpi", "--allow-run-as-root", *self.remote_options(), "--mca", "plm_rsh_agent", self.agent(),
                "--host", "198.51.100.1:2,198.51.100.2:2", "-np", 4, *options]

    def test_ranks_of_one_node_need_no_option(self):
        self.check_one_world(self.run_command([*self.mpirun(RANKS), *self.trainer()]))

    def test_ranks_of_two_nodes_need_the_host_of_rank_0(self):
        self.check_refused(self.run_command([*self.on_two_nodes(), *self.trainer()]), "MASTER_ADDR")
        self.check_one_world(self.run_command([*self.on_two_nodes("-x", "MASTER_ADDR=127.0.0.1"), *self.trainer()]))

    def test_variables_set_by_hand_agree_or_are_refused(self):
        by_hand = ["sh", "-c", 'RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE exec "$@"', "sh"]
        self.check_one_world(self.run_command([*self.mpirun(RANKS), *by_hand, *self.trainer()]))
        shutil.rmtree(self.root / "run")
        wrong = self.mpirun(2, "-x", "RANK=0", "-x", "WORLD_SIZE=1")
        self.check_refused(self.run_command([*wrong, *self.trainer()]), "WORLD_SIZE is 1", "OMPI_COMM_WORLD_SIZE is 2", "CAIRN_LAUNCHER")

    def test_a_mark_of_a_launcher_without_its_rank_is_refused(self):
        self.check_refused(self.run_command(self.trainer(), OMPI_COMM_WORLD_SIZE="2"), "OMPI_COMM_WORLD_RANK is not set")

    def test_a_job_goes_on_with_the_hosts_that_are_left(self):
        job = self.start_job("mpirun.sh", "env", "MASTER_ADDR=127.0.0.1", HOSTS="198.51.100.1 198.51.100.2", REMOTE_SHELL=str(self.agent()),
                             MPIRUN=shlex.join(["mpirun.openmpi", "--allow-run-as-root", *self.remote_options()]))
        said = read_until(job.stdout, "step 4 loss")
        (self.root / "dead.198.51.100.2").touch()
        kill_ranks(self.root / "run", "OMPI_COMM_WORLD_RANK=3")
        said += job.stdout.read()
        self.assertEqual(job.wait(), 0, said)
        self.check_resumed(said, [4, 2])

    def test_a_job_that_is_ended_has_the_time_to_save(self):
        trainer = [CHAR_LM, "--allow-injection", "--dir", self.root / "run", "--steps", 10**6, "--save-every", 0]
        command = [str(word) for word in [EXAMPLES / "jobs" / "mpirun.sh", *trainer]]
        mpirun = "mpirun.openmpi --allow-run-as-root --oversubscribe"
        job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
                               env={**self.environment, "MPIRUN": mpirun, "GRACE_SECONDS": "6",
                                    "CAIRN_INJECT": "delay=2s@hook:write_data,nth=all"})
        self.addCleanup(end_group, job)
        said = read_until(job.stdout, "step 2 loss")
        job.terminate()  # the script alone, as a batch system does
        said += job.stdout.read()
        self.assertNotEqual(job.wait(), 0, said)
        self.assertNotIn("start 1 ", said)
        self.assertTrue(list((self.root / "run").glob("step_*/.metadata")), said)

    def test_a_job_passes_cairn_s_variables_to_other_hosts(self):
        done = self.run_command([EXAMPLES / "jobs" / "mpirun.sh", "trainer"], MPIRUN="echo", CAIRN_SECRET_FILE="/a/file")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(" -x MASTER_ADDR ", done.stdout)
        self.assertIn(" -x CAIRN_SECRET_FILE ", done.stdout)


class Mpich(Launched):
    needs = ("mpiexec.mpich",)

    def test_ranks_of_one_node_need_no_option(self):
        self.check_one_world(self.run_command(["mpiexec.mpich", "-n", RANKS, *self.trainer()]))

    def test_ranks_of_two_nodes_need_the_host_of_rank_0_and_a_port(self):
        hosts = self.root / "hosts"
        hosts.write_text("localhost\n127.0.0.1\n")  # two names of this machine are two nodes to MPICH
        on_two_nodes = ["mpiexec.mpich", "-launcher", "fork", "-f", hosts, "-n", 2]
        self.check_refused(self.run_command([*on_two_nodes, *self.trainer()]), "MASTER_ADDR")
        placed = [*on_two_nodes, "-genv", "MASTER_ADDR", "127.0.0.1"]
        self.check_refused(self.run_command([*placed, *self.trainer()]), "MASTER_PORT")
        placed += ["-genv", "MASTER_PORT", free_port()]
        self.check_one_world(self.run_command([*placed, *self.trainer()]), ranks=2)


@functools.lru_cache(maxsize=None)
def torchrun_command():
    """CAIRN_TORCHRUN or torchrun. One that asks for libuv, which its PyTorch lacks, is replaced by the example that does not ask."""
    command = shlex.split(os.environ.get("CAIRN_TORCHRUN", "torchrun"))
    tried = subprocess.run([*command, "--master_port", free_port(), "--no_python", "true"], capture_output=True, text=True, check=False)
    return [sys.executable, str(EXAMPLES / "jobs/torchrun_without_libuv.py")] if "without libuv" in tried.stderr else command


class Torchrun(Launched):
    needs = tuple(shlex.split(os.environ.get("CAIRN_TORCHRUN", "torchrun"))[:1])

    @staticmethod
    def torchrun(ranks, *options):
        # -r and -t: without them, torchrun of PyTorch 1.13 fails under Python 3.11.
        return [*torchrun_command(), "-r", "1", "-t", "1", "--nproc_per_node", ranks, *options, "--no_python"]

    @staticmethod
    def unprefixed(done):
        done.stdout = re.sub(r"^\[[^\]]*\]:", "", done.stdout, flags=re.MULTILINE)
        return done

    def test_ranks_meet_at_the_agent_s_store(self):
        done = self.run_command([*self.torchrun(RANKS, "--master_port", free_port()), *self.trainer()])
        self.check_one_world(self.unprefixed(done))

    def test_ranks_meet_where_rank_0_hosts_the_store(self):
        self.check_one_world(self.unprefixed(self.run_command([*self.torchrun(RANKS, "--standalone"), *self.trainer()])))

    def test_a_job_goes_on_with_the_machine_that_is_left(self):
        port = free_port()

        def start(output, is_host):
            """One machine's torchrun. The host serves the rendezvous."""
            options = ["-r", "1", "-t", "1", "--rdzv_conf", f"last_call_timeout=2,is_host={is_host}"]
            return self.start_job("torchrun.sh", output=output, RENDEZVOUS=f"localhost:{port}", JOB=self.root.name,
                                  TORCHRUN=shlex.join([*torchrun_command(), *options]), CAIRN_TEST_HOST=str(is_host),
                                  PYTHONUNBUFFERED="1")  # the ranks' lines are to come while they train
        read_end, write_end = os.pipe()
        first, second = start(write_end, 1), start(write_end, 0)
        os.close(write_end)
        with open(read_end, encoding="utf-8") as output:
            said = read_until(output, "step 4 loss")
            end_group(second)
            kill_ranks(self.root / "run", "CAIRN_TEST_HOST=0")  # newer ones lead sessions of their own
            said += output.read()
        self.assertEqual(first.wait(), 0, said)
        self.check_resumed(said, [4, 2])


class Slurm(Launched):
    @classmethod
    def missing(cls):
        return slurm_cluster.missing()

    @classmethod
    def setUpClass(cls):
        cls.cluster_root = tempfile.mkdtemp(prefix="cairn_slurm_")
        cls.addClassCleanup(shutil.rmtree, cls.cluster_root)
        cls.cluster = slurm_cluster.Cluster(cls.cluster_root)
        cls.addClassCleanup(cls.cluster.stop)

    def batch(self, script, *options):
        """Runs a batch script to its end."""
        output = self.root / "output"
        done = self.run_command(["sbatch", "--wait", "--output", output, *options, "--wrap", script])
        done.stdout = output.read_text()
        return done

    def test_ranks_of_two_nodes_need_no_option(self):
        self.check_one_world(self.run_command(["srun", "-N", 2, "-n", RANKS, *self.trainer()]))

    def test_ranks_of_one_node_need_no_option(self):
        self.check_one_world(self.run_command(["srun", "-N", 1, "-n", RANKS, *self.trainer()]))

    def test_a_step_of_a_batch_job_counts_and_not_the_job(self):
        step = shlex.join(map(str, ["srun", "-n", 2, *self.trainer()]))
        self.check_one_world(self.batch(step, "-N", 2, "-n", RANKS), ranks=2)

    def test_pmi_of_srun_agrees(self):
        self.check_one_world(self.run_command(["srun", "--mpi=pmi2", "-N", 2, "-n", RANKS, *self.trainer()]))

    def test_a_trainer_that_the_batch_script_starts_without_srun_is_refused(self):
        trainer = shlex.join(map(str, self.trainer()))
        self.check_refused(self.batch(trainer, "-n", 2), "SLURM_NTASKS is 2", "srun")
        done = self.batch("CAIRN_LAUNCHER=none " + trainer, "-n", 2)
        self.check_one_world(done, ranks=1)

    def test_variables_exported_by_the_batch_script_count(self):
        exported = f"export WORLD_SIZE=$SLURM_NTASKS MASTER_ADDR=127.0.0.1 MASTER_PORT={free_port()}; "
        self.check_one_world(self.batch(exported + shlex.join(map(str, ["srun", *self.trainer()])), "-N", 2, "-n", RANKS))

    def control(self, *command):
        done = self.run_command(command)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_a_job_is_requeued_when_its_time_is_over_and_when_a_node_fails(self):
        output = self.root / "output"
        output.touch()
        job = self.control("sbatch", "--parsable", "--output", output, "--error", self.log(), EXAMPLES / "jobs" / "slurm.sh",
                           *self.trainer("--resume", steps=JOB_STEPS)).strip()
        with subprocess.Popen(["tail", "-n", "+1", "-f", output], stdout=subprocess.PIPE, text=True) as tail:
            said = read_until(tail.stdout, "step 4 loss")
            self.control("scancel", "--batch", "--signal=USR1", job)  # as two minutes before its time is over
            said += read_until(tail.stdout, "which is saved")
            said += read_until(tail.stdout, "start 1 on n[1-2]") + read_until(tail.stdout, " loss ")
            self.cluster.kill_node("n2")
            self.addCleanup(self.cluster.restore_node, "n2")
            said += read_until(tail.stdout, "start 2 on n1") + read_until(tail.stdout, f"step {JOB_STEPS} loss")
            tail.kill()
        self.check_resumed(said, [4, 2])
        self.control("srun", "-n", 1, "-w", "n1", f"--dependency=afterok:{job}", "true")  # it has ended well

    def mpi(self, program, ranks):
        if shutil.which(program) is None:
            self.skipTest(f"{program} is not installed")
        options = ["--allow-run-as-root", "--oversubscribe", "--mca", "oob_tcp_if_include", "lo"] if program == "mpirun.openmpi" else []
        return [program, *options, "-n", ranks]

    def test_mpirun_s_daemons_in_a_step_are_no_ranks(self):
        for program in ("mpirun.openmpi", "mpiexec.mpich"):
            with self.subTest(program):
                placed = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
                command = ["salloc", "-N", 2, "-n", RANKS, *self.mpi(program, RANKS), *self.trainer()]
                self.check_one_world(self.run_command(command, **placed))
                shutil.rmtree(self.root / "run")

    def test_torchrun_with_one_agent_per_task_counts(self):
        if Torchrun.missing():
            self.skipTest(Torchrun.missing())
        port = free_port()
        options = ["--nnodes", 2, "--rdzv_backend", "c10d", "--rdzv_endpoint", f"127.0.0.1:{port}", "--rdzv_id", "job"]
        done = self.run_command(["srun", "-N", 2, "-n", 2, *Torchrun.torchrun(2, *options), *self.trainer()])
        self.check_one_world(Torchrun.unprefixed(done))

    def test_one_job_in_each_of_several_tasks_is_refused(self):
        alone = ["--mca", "plm", "isolated", "--mca", "ras", "^slurm"]  # mpirun is not to start its ranks through Slurm
        inner = shlex.join(map(str, [*self.mpi("mpirun.openmpi", 3), *alone, *self.trainer()]))
        done = self.run_command(["srun", "-N", 1, "-n", 2, "sh", "-c", inner])
        self.check_refused(done, "OMPI_COMM_WORLD_SIZE is 3", "SLURM_STEP_NUM_TASKS is 2")


def main():
    lacking = globals()[CLASS].missing()
    if lacking:
        print(f"skipped: {lacking}")
        sys.exit(SKIPPED)
    if CLASS == "Slurm" and not slurm_cluster.inside():
        slurm_cluster.enter_namespaces()
    unittest.main(argv=[sys.argv[0], *(sys.argv[4:] or [CLASS])], verbosity=2)


if __name__ == "__main__":
    main()
