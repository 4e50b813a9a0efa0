"""cairn-launch, from outside: what it starts, prints, forwards, reports and leaves behind."""

import array
import fcntl
import importlib.machinery
import importlib.util
import os
import pty
import random
import re
import resource
import select
import signal
import subprocess
import sys
import struct
import tempfile
import termios
import time
import types
import unittest

LAUNCHER = os.environ.get("CAIRN_LAUNCH") or os.path.join(os.path.dirname(__file__), "..", "..", "tools", "cairn-launch")
PATIENCE = 60  # seconds; only a hang meets it


def shell(script):
    return ["--", "bash", "-c", script]


def state(pid):
    """The process's state as ps shows it: R, S, Z, ...; Z too once it is gone altogether."""
    try:
        with open("/proc/%d/stat" % pid) as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def alive(pid):
    """Whether the process runs; one that has ended but was not reaped yet does not."""
    return state(pid) != "Z"


def wait_until(condition):
    give_up = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > give_up:
            return False
        os.sched_yield()
    return True


class LauncherTest(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory(prefix="cairn-launch-")
        self.addCleanup(self.directory.cleanup)

    def path(self, name):
        return os.path.join(self.directory.name, name)

    def launch(self, *arguments):
        return subprocess.run([LAUNCHER, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=PATIENCE, text=True)

    def start(self, *arguments):
        process = subprocess.Popen([LAUNCHER, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(self.end, process)
        return process

    @staticmethod
    def end(process):
        if process.poll() is None:
            process.kill()
        process.communicate()

    def pids(self, count):
        """The process numbers that a script wrote with `echo $$ > DIRECTORY/<n>.pid`, once there are so many."""
        def read():
            found = []
            for name in os.listdir(self.directory.name):
                if name.endswith(".pid"):
                    with open(self.path(name)) as file:
                        text = file.read()
                    if text.endswith("\n"):
                        found.append(int(text))
            return found
        self.assertTrue(wait_until(lambda: len(read()) == count), "the ranks have not started")
        return read()

    def gate(self, name):
        """A pipe at which ranks wait with `read < PATH`, until `open_gate`."""
        os.mkfifo(self.path(name))
        return self.path(name)

    def open_gate(self, name):
        self.open_gates(name, 1)

    def open_gates(self, name, count):
        gate = os.open(self.path(name), os.O_RDWR)  # kept open: whoever comes later finds the line, too
        self.addCleanup(os.close, gate)
        os.write(gate, b"\n" * count)

    def assertAllGone(self, pids):
        self.assertTrue(wait_until(lambda: not any(alive(pid) for pid in pids)), "still running: %s" % [pid for pid in pids if alive(pid)])

    # -- what ranks are given -------------------------------------------------------------------------------------------------

    def test_every_rank_gets_its_environment(self):
        result = self.launch("-n", "3", "--env", "COLOUR=dark blue", *shell(
            'echo "$RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR $MASTER_PORT $COLOUR"'))
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = sorted(result.stdout.splitlines())
        self.assertEqual(len(lines), 3)
        ports = set()
        for rank, line in enumerate(lines):
            match = re.fullmatch(r"\[rank %d\] %d %d 3 3 127\.0\.0\.1 (\d+) dark blue" % (rank, rank, rank), line)
            self.assertTrue(match, line)
            ports.add(int(match.group(1)))
        self.assertEqual(len(ports), 1)
        self.assertGreater(ports.pop(), 0)

    def test_ranks_know_how_long_they_have_after_a_signal(self):
        def told(*options):
            return self.launch("-n", "1", *options, *shell('echo "$CAIRN_GRACE_SECONDS"')).stdout
        self.assertEqual(told("--grace", "12.5"), "[rank 0] 12.5\n")
        self.assertEqual(told(), "[rank 0] 35\n", "longer than CheckpointManagerOptions::grace_period")
        self.assertEqual(told("--env", "CAIRN_GRACE_SECONDS=3"), "[rank 0] 3\n")

    # -- the secret ---------------------------------------------------------------------------------------------------------------

    SECRET = 'stat -c "%a %U $CAIRN_SECRET_FILE" "$CAIRN_SECRET_FILE"; cat "$CAIRN_SECRET_FILE"; '

    def secrets_of(self, output):
        """(path, secret) as SECRET prints them, one for each rank."""
        lines = [re.sub(r"^\[rank \d+\] ", "", line) for line in output.splitlines()]
        paths = [line.split(" ", 2)[2] for line in lines if line.startswith("600 ")]
        return sorted(zip(paths, [line for line in lines if re.fullmatch(r"[0-9a-f]{64}", line)]))

    def test_ranks_share_a_secret_that_ends_with_the_job(self):
        found = []
        for _ in range(2):
            result = self.launch("-n", "2", "--no-prefix", *shell(self.SECRET))
            self.assertEqual(result.returncode, 0, result.stderr)
            pairs = self.secrets_of(result.stdout)
            self.assertEqual(len(pairs), 2, result.stdout)
            self.assertEqual(pairs[0], pairs[1])
            self.assertFalse(os.path.exists(os.path.dirname(pairs[0][0])))
            found.append(pairs[0])
        self.assertNotEqual(found[0][0], found[1][0])
        self.assertNotEqual(found[0][1], found[1][1])

    def test_the_secret_is_no_argument_and_no_variable(self):
        launcher = self.start("-n", "1", *shell(self.SECRET + 'read < "%s"' % self.gate("go")))
        secret = self.secrets_of(launcher.stdout.readline() + launcher.stdout.readline())[0][1].encode()
        looked_at = 0
        for pid in filter(str.isdigit, os.listdir("/proc")):
            for name in ("cmdline", "environ"):
                try:
                    with open("/proc/%s/%s" % (pid, name), "rb") as file:
                        text = file.read()
                except OSError:
                    continue
                looked_at += 1
                self.assertNotIn(secret, text, "%s of process %s" % (name, pid))
        self.assertGreater(looked_at, 3)
        self.open_gate("go")
        self.assertEqual(launcher.wait(PATIENCE), 0)

    def test_the_secret_ends_with_a_launcher_that_is_killed(self):
        launcher = self.start("-n", "1", *shell("echo $$ > %s; %s exec sleep 1000" % (self.path("0.pid"), self.SECRET)))
        path = self.secrets_of(launcher.stdout.readline() + launcher.stdout.readline())[0][0]
        self.assertTrue(os.path.exists(path))
        launcher.kill()
        self.assertTrue(wait_until(lambda: not os.path.exists(os.path.dirname(path))))
        self.assertAllGone(self.pids(1))

    def test_a_secret_that_was_given_is_kept(self):
        self.assertEqual(self.launch("-n", "1", "--env", "CAIRN_SECRET_FILE=/some/file", *shell("echo $CAIRN_SECRET_FILE")).stdout,
                         "[rank 0] /some/file\n")
        given = dict(os.environ, CAIRN_SECRET_FILE="/another/file")
        result = subprocess.run([LAUNCHER, "-n", "1", *shell("echo $CAIRN_SECRET_FILE")], stdout=subprocess.PIPE, env=given,
                                timeout=PATIENCE, text=True)
        self.assertEqual(result.stdout, "[rank 0] /another/file\n")

    def test_a_guardian_that_is_killed_takes_nothing_with_it(self):
        script = ('if [ $RANK = 0 ]; then read guardian _ < /proc/$PPID/task/$PPID/children; kill -KILL $guardian; %s fi; '
                  'read < "%s"; echo done' % (self.SECRET, self.gate("go")))
        launcher = self.start("-n", "20", "--no-prefix", *shell(script))  # the later ones start without it, or all of them end without it
        path = self.secrets_of(launcher.stdout.readline() + launcher.stdout.readline())[0][0]
        self.assertTrue(os.path.exists(path))
        self.open_gates("go", 20)
        out, err = launcher.communicate(timeout=PATIENCE)
        self.assertEqual(launcher.returncode, 0, err)
        self.assertEqual(out.count("done"), 20)
        self.assertEqual(err, "cairn-launch: ranks 0-19 exited with 0\n")
        self.assertFalse(os.path.exists(os.path.dirname(path)))

    def test_without_a_place_for_a_secret(self):
        result = subprocess.run([LAUNCHER, "-n", "1", "--", "true"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=PATIENCE,
                                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)))
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, r"^cairn-launch: cannot write a secret for the job: .*'/tmp'.*TMPDIR.*CAIRN_SECRET_FILE.*\n$")

    def test_ranks_may_do_without_a_secret(self):
        self.assertEqual(self.launch("-n", "1", "--env", "CAIRN_SECRET=", *shell('echo "[$CAIRN_SECRET_FILE]"')).stdout, "[rank 0] []\n")

    def test_injections_reach_the_ranks(self):
        arguments = ("-n", "1", "--inject", "kill@hook:finish", "--inject", "throw@store:sync,rank=1")
        print_it = shell('echo "$CAIRN_INJECT"')
        self.assertEqual(self.launch(*arguments, *print_it).stdout, "[rank 0] kill@hook:finish;throw@store:sync,rank=1\n")
        self.assertEqual(self.launch("--env", "CAIRN_INJECT=freeze@hook:begin", *arguments, *print_it).stdout,
                         "[rank 0] freeze@hook:begin;kill@hook:finish;throw@store:sync,rank=1\n")
        self.assertEqual(self.launch("-n", "1", *shell('echo "${CAIRN_INJECT-unset}"')).stdout, "[rank 0] unset\n")

    def test_two_launches_get_different_ports(self):
        first = self.start("-n", "1", *shell('echo $MASTER_PORT; read < "%s"' % self.gate("go")))
        port = first.stdout.readline()
        second = self.launch("-n", "1", *shell("echo $MASTER_PORT"))
        self.open_gate("go")
        self.assertEqual(first.wait(PATIENCE), 0)
        self.assertNotEqual(port.strip(), second.stdout.strip())

    def test_the_port_can_be_listened_at(self):
        script = ("import os, socket; s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1);"
                  "s.bind(('', int(os.environ['MASTER_PORT']))); s.listen(); print('listening')")
        result = self.launch("-n", "1", "--", sys.executable, "-c", script)
        self.assertEqual(result.stdout, "[rank 0] listening\n", result.stderr)

    def test_master_port_can_be_chosen(self):
        self.assertEqual(self.launch("-n", "1", "--master-port", "4711", *shell("echo $MASTER_PORT")).stdout, "[rank 0] 4711\n")

    def test_arguments_are_passed_as_they_are(self):
        result = self.launch("-n", "1", "--", sys.executable, "-c", "import sys; print(sys.argv[1:])", "-n", "--", "a b", "")
        self.assertEqual(result.stdout, "[rank 0] ['-n', '--', 'a b', '']\n")

    # -- output ---------------------------------------------------------------------------------------------------------------

    def test_lines_are_not_torn(self):
        script = ("import os, sys\n"
                  "for i in range(2000): sys.stdout.write('x' * 50); sys.stdout.flush(); sys.stdout.write('%s %d\\n' % (os.environ['RANK'], i))")
        result = self.launch("-n", "4", "--", sys.executable, "-c", script)
        lines = result.stdout.splitlines()
        self.assertEqual(len(lines), 8000)
        for rank in range(4):
            own = [line for line in lines if line.startswith("[rank %d] " % rank)]
            self.assertEqual(own, ["[rank %d] %s%d %d" % (rank, "x" * 50, rank, i) for i in range(2000)])

    def test_an_unfinished_last_line_is_printed(self):
        self.assertEqual(self.launch("-n", "1", *shell("printf 'no newline'")).stdout, "[rank 0] no newline\n")

    def test_a_line_without_end_is_cut_and_complete(self):
        result = self.launch("-n", "1", *shell("head -c 1000000 /dev/zero | tr '\\0' y"))
        text = result.stdout.replace("[rank 0] ", "").replace("\n", "")
        self.assertEqual(len(text), 1000000)
        self.assertEqual(set(text), {"y"})

    @staticmethod
    def is_full(process):
        """Whether its standard output is: all but a page of the pipe."""
        waiting = array.array("i", [0])
        fcntl.ioctl(process.stdout.fileno(), termios.FIONREAD, waiting)
        return waiting[0] >= 15 * 4096 and state(process.pid) == "S"

    def test_signals_while_the_output_is_full_lose_nothing(self):
        process = self.start("-n", "1", *shell("head -c 2000000 /dev/zero | tr '\\0' y"))
        read = b""
        for _ in range(25):
            self.assertTrue(wait_until(lambda: self.is_full(process)))
            process.send_signal(signal.SIGCHLD)
            read += os.read(process.stdout.fileno(), 65536)
        text = (read.decode() + process.communicate(timeout=PATIENCE)[0]).replace("[rank 0] ", "").replace("\n", "")
        self.assertEqual(len(text), 2000000)

    def test_the_time_limit_holds_while_nobody_reads(self):
        for script in ("yes", "yes & yes >&2"):
            process = self.start("-n", "2", "--timeout", "0.5", "--grace", "0.3", *shell('echo $$ > "%s/$RANK.pid"; %s' % (
                self.directory.name, script)))
            pids = self.pids(2)
            self.assertEqual(process.wait(PATIENCE), 124, script)
            self.assertAllGone(pids)
            for rank in range(2):
                os.unlink(self.path("%d.pid" % rank))

    def test_signals_hold_while_nobody_reads(self):
        script = 'yes & exec "%s" -c "$0" "%s" %d stays' % (sys.executable, self.directory.name, signal.SIGTERM)
        process = self.start("-n", "1", "--grace", "1000", *shell(script), self.TOLD)
        pids = self.pids(1)
        self.assertTrue(wait_until(lambda: self.is_full(process)))
        process.send_signal(signal.SIGTERM)
        self.assertTrue(wait_until(lambda: os.path.exists(self.path("0.told"))))
        process.send_signal(signal.SIGTERM)
        self.assertAllGone(pids)
        self.assertIn("y\n", process.communicate(timeout=PATIENCE)[0])
        self.assertEqual(process.returncode, 128 + signal.SIGKILL)

    LATE = 'echo $$ > %s; for i in {1..1000}; do printf "%%0100d\\n" $i; done'  # more than one pipe holds, less than two

    def test_who_reads_after_the_end_gets_all(self):
        process = self.start("-n", "1", *shell(self.LATE % self.path("0.pid")))
        self.assertAllGone(self.pids(1))
        out, err = process.communicate(timeout=PATIENCE)
        self.assertEqual(out.splitlines(), ["[rank 0] %0100d" % i for i in range(1, 1001)])
        self.assertEqual(process.returncode, 0, err)

    def test_output_that_nobody_reads_is_given_up_at_the_end(self):
        process = self.start("-n", "1", "--grace", "0.3", *shell(self.LATE % self.path("0.pid")))
        self.assertEqual(process.wait(PATIENCE), 128 + signal.SIGPIPE)
        self.assertIn("the last of the output is lost: nobody has read any of it for 0.3 s\n", process.communicate()[1])

    def test_a_signal_at_the_end_gives_the_output_up(self):
        process = self.start("-n", "1", "--grace", "1000", *shell(self.LATE % self.path("0.pid")))
        self.assertAllGone(self.pids(1))

        def ended():
            process.send_signal(signal.SIGTERM)  # the first one may come before the launcher knows that the rank has ended
            return process.poll() is not None
        self.assertTrue(wait_until(ended))
        self.assertEqual(process.returncode, 128 + signal.SIGPIPE)
        self.assertIn("the last of the output is lost: told to end\n", process.communicate()[1])

    def test_standard_error_stays_standard_error(self):
        result = self.launch("-n", "1", *shell("echo to out; echo to err >&2"))
        self.assertEqual(result.stdout, "[rank 0] to out\n")
        self.assertIn("[rank 0] to err\n", result.stderr)

    def test_equal_lines_of_ranks_that_come_together_are_one_line(self):
        script = 'echo $$ > "%s/$RANK.pid"; read < "%s"; echo equal; echo my $RANK' % (self.directory.name, self.gate("go"))
        process = self.start("-n", "6", *shell(script))
        pids = self.pids(6)
        process.send_signal(signal.SIGSTOP)
        self.assertTrue(wait_until(lambda: state(process.pid) == "T"))
        self.open_gates("go", 6)
        self.assertAllGone(pids)
        process.send_signal(signal.SIGCONT)
        out, err = process.communicate(timeout=PATIENCE)
        self.assertEqual(out.splitlines()[0], "[ranks 0-5] equal", err)
        self.assertEqual(sorted(out.splitlines()[1:]), ["[rank %d] my %d" % (rank, rank) for rank in range(6)])

    def test_lines_of_one_file_are_in_order_whichever_descriptor_they_took(self):
        script = shell("for i in {1..500}; do echo out $i; echo err $i >&2; done")
        result = subprocess.run([LAUNCHER, "-n", "1", "--no-prefix", *script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PATIENCE,
                                text=True)
        lines = result.stdout.splitlines()
        self.assertEqual([line for line in lines if line.startswith("out ")], ["out %d" % i for i in range(1, 501)])
        self.assertEqual([line for line in lines if line.startswith("err ")], ["err %d" % i for i in range(1, 501)])
        self.assertEqual(lines[-1], "cairn-launch: rank 0 exited with 0")

    def test_the_output_of_each_rank_is_appended_to_its_file(self):
        logs = self.path("logs/of/this job")
        for redirection in ("", "exec >&2; "):
            result = self.launch("-n", "2", "--log-dir", logs, *shell(redirection + "printf 'here is %s\\r\\n\\nend' $RANK"))
            self.assertEqual(result.returncode, 0, result.stderr)
        for rank in range(2):
            with open(os.path.join(logs, "rank-%d.log" % rank), "rb") as file:
                self.assertEqual(file.read(), b"here is %d\r\n\nend" % rank * 2)

    def test_long_output_is_in_the_file_byte_by_byte(self):
        result = self.launch("-n", "1", "--log-dir", self.path("logs"), *shell("head -c 3000000 /dev/zero | tr '\\0' y; echo; seq 100000"))
        self.assertEqual(result.returncode, 0, result.stderr)
        with open(self.path("logs/rank-0.log")) as file:
            self.assertEqual(file.read(), "y" * 3000000 + "\n" + "".join("%d\n" % i for i in range(1, 100001)))

    def test_without_a_place_for_the_files_nothing_is_started(self):
        open(self.path("file"), "w").close()
        result = self.launch("-n", "1", "--log-dir", self.path("file/logs"), *shell("echo started"))
        self.assertEqual(result.returncode, 1)
        self.assertEqual(result.stdout, "")
        self.assertRegex(result.stderr, r"^cairn-launch: cannot make the directory for the ranks' output: .*Not a directory.*file/logs'\n$")
        os.makedirs(self.path("logs/rank-1.log"))
        result = self.launch("-n", "2", "--log-dir", self.path("logs"), *shell("echo started"))
        self.assertEqual(result.returncode, 126)
        self.assertRegex(result.stderr, r"cannot start rank 1: .*rank-1.log: Is a directory\n$")

    def test_a_full_disk_ends_the_files_and_not_the_job(self):
        os.mkdir(self.path("logs"))
        os.symlink("/dev/full", self.path("logs/rank-0.log"))
        result = self.launch("-n", "1", "--log-dir", self.path("logs"), *shell("echo one; echo two"))
        self.assertEqual(result.returncode, 0)
        self.assertEqual(result.stdout, "[rank 0] one\n[rank 0] two\n")
        self.assertEqual(result.stderr.count("cannot write the ranks' output to %s any more: No space left on device\n" % self.path("logs")), 1)

    def test_a_file_that_takes_nothing_more_is_given_up_without_failing_the_job(self):
        os.mkdir(self.path("logs"))
        os.mkfifo(self.path("logs/rank-0.log"))
        unread = os.open(self.path("logs/rank-0.log"), os.O_RDWR)
        self.addCleanup(os.close, unread)
        result = self.launch("-n", "1", "--no-prefix", "--grace", "0.2", "--log-dir", self.path("logs"), *shell("seq 20000"))
        self.assertEqual(result.stdout, "".join("%d\n" % number for number in range(1, 20001)))
        self.assertIn("cannot write the ranks' output to %s any more: " % self.path("logs"), result.stderr)
        self.assertNotIn("the last of the output is lost", result.stderr)
        self.assertEqual(result.returncode, 0)

    def test_no_prefix(self):
        self.assertEqual(self.launch("-n", "1", "--no-prefix", *shell("echo plain")).stdout, "plain\n")

    def test_output_that_cannot_be_written_ends_the_ranks(self):
        with open("/dev/full", "w") as full:
            result = subprocess.run([LAUNCHER, "-n", "2", *shell("echo hello; sleep 1000")], stdout=full, stderr=subprocess.PIPE, text=True,
                                    timeout=PATIENCE)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("cannot write the output: No space left on device; ending all ranks", result.stderr)
        self.assertNotIn("Traceback", result.stderr)

    def test_standard_streams_may_be_closed(self):
        for closed in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-"):
            result = subprocess.run(["bash", "-c", 'exec "$0" -n 1 -- sh -c "echo out; echo err >&2; exit 3" %s' % closed, LAUNCHER],
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=PATIENCE)
            self.assertEqual(result.returncode, 3, closed)
            self.assertNotIn("Traceback", result.stderr)
            if " >&-" not in " " + closed:
                self.assertIn("[rank 0] out", result.stdout, closed)

    def test_many_ranks_are_named_in_short(self):
        result = self.launch("-n", "8", "--keep-going", *shell("exit $((RANK == 5))"))
        self.assertIn("ranks 0-4, 6, 7 exited with 0", result.stderr)

    def test_a_reader_that_leaves_ends_the_ranks(self):
        process = self.start("-n", "2", *shell('echo $$ > "%s/$RANK.pid"; while true; do echo y; done' % self.directory.name))
        pids = self.pids(2)
        process.stdout.readline()
        process.stdout.close()
        process.stdout = None
        self.assertNotEqual(process.wait(PATIENCE), 0)
        self.assertAllGone(pids)

    # -- the line at the bottom of a terminal ----------------------------------------------------------------------------------

    def on_terminal(self, script, gate, resized, until=None, stdout=None):
        """What a launcher of one rank writes to its terminal of 80 columns, which has others before the gate opens; read up to `until`."""
        master, slave = pty.openpty()
        self.addCleanup(os.close, master)

        def widen(width):
            fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
        widen(80)
        process = subprocess.Popen([LAUNCHER, "-n", "1", *shell(script)], stdin=subprocess.DEVNULL, stdout=stdout or slave, stderr=slave,
                                   env=dict(os.environ, TERM="xterm"))
        self.addCleanup(self.end, process)
        text = b""

        def read():
            nonlocal text
            if not select.select([master], [], [], PATIENCE)[0]:
                self.fail("nothing more came to the terminal after: %r" % text)
            try:
                text += os.read(master, 65536)
            except OSError:  # EIO: nobody has it open any more
                return False
            return True
        while b"waits" not in text and read():
            pass
        widen(resized)
        process.send_signal(signal.SIGWINCH)
        while text.count(b"waits") < 2 and read():
            pass
        self.open_gate(os.path.basename(gate))
        os.close(slave)
        while not (until and text.endswith(until)) and read():
            pass
        if until:
            return text.decode()
        self.assertEqual(process.wait(PATIENCE), 0, text)
        return text.decode()

    @staticmethod
    def drawn(text):
        return "\x1bD\x1b[A\x1b7\x1b[J\x1b[B\r%s\x1b8" % text

    ERASED = "\x1b[J"
    SHOW = 'show() { echo "$1" > $CAIRN_STATUS_TERMINAL; }; '

    def test_output_goes_above_the_status_which_is_gone_in_the_end(self):
        for number, end in enumerate(('show ""', "true", "exit 0")):
            gate = self.gate("go%d" % number)
            text = self.on_terminal(self.SHOW + 'show "it waits"; read < "%s"; echo one; echo two >&2; %s' % (gate, end), gate, resized=80)
            self.assertEqual(text.count("it waits"), text.count(self.drawn("it waits")))
            # The two lines come through two pipes, in either order.
            self.assertRegex(text, re.escape(self.ERASED) + r"\[rank 0\] (one|two)\r\n")
            self.assertIn("[rank 0] one\r\n", text)
            self.assertIn("[rank 0] two\r\n", text)
            self.assertNotIn("\x1b8", text[text.rindex(self.ERASED):])
            self.assertTrue(text.endswith("cairn-launch: rank 0 exited with 0\r\n"), text)

    def test_lines_that_another_program_may_print_first_erase_the_status(self):
        gate = self.gate("go")
        script = self.SHOW + 'show "it waits"; read < "%s"; echo one; read < "%s"' % (gate, self.gate("never"))
        text = self.on_terminal(script, gate, resized=80, until=b"\x1b8" + self.ERASED.encode(), stdout=subprocess.PIPE)
        self.assertNotIn("one", text)

    def test_the_status_follows_the_width_of_the_terminal(self):
        gate = self.gate("go")
        size = "stty size < $CAIRN_STATUS_TERMINAL; "
        text = self.on_terminal(self.SHOW + size + 'show "0123456789 waits 0123456789"; read < "%s"; %s' % (gate, size), gate, resized=20)
        self.assertIn("[rank 0] 24 80\r\n", text)
        self.assertIn(self.drawn("0123456789 waits 0123456789"), text)
        self.assertIn(self.drawn("0123456789 waits 01"), text)
        self.assertIn("[rank 0] 24 20\r\n", text)

    def test_control_characters_in_a_status_do_not_reach_the_terminal(self):
        gate = self.gate("go")
        text = self.on_terminal(self.SHOW + 'show $\'a\\e[2Jb\\x07 waits\'; read < "%s"' % gate, gate, resized=80)
        self.assertIn(self.drawn("a?[2Jb? waits"), text)

    def test_there_is_no_status_where_standard_error_is_no_terminal(self):
        self.assertEqual(self.launch("-n", "1", *shell('echo "${CAIRN_STATUS_TERMINAL-none}"')).stdout, "[rank 0] none\n")

    # -- ends -----------------------------------------------------------------------------------------------------------------

    def test_the_first_failure_ends_all_and_is_reported(self):
        script = ('echo $$ > "%s/$RANK.pid"; if [ $RANK = 2 ]; then exec 3<> "%s"; read -u 3; read -u 3; echo last words; exit 7; fi; '
                  'echo here > "%s"; sleep 1000 & wait' % (self.directory.name, self.gate("others"), self.path("others")))
        result = self.launch("-n", "3", *shell(script))
        self.assertEqual(result.returncode, 7)
        self.assertIn("rank 2 exited with 7", result.stderr)
        self.assertIn("ranks 0, 1 ended by SIGTERM on the word of cairn-launch", result.stderr)
        self.assertIn("last lines of rank 2:\ncairn-launch:   last words\n", result.stderr)  # which are in the other output
        self.assertAllGone(self.pids(3))

    def test_last_lines_that_stand_just_above_are_not_repeated(self):
        script = 'if [ $RANK = 1 ]; then echo last words >&2; exit 7; fi; trap "" TERM; read < "%s"; seq %d >&2'
        for others, repeated in ((2, False), (30, True)):
            gate = self.gate("go%d" % others)
            process = self.start("-n", "2", "--grace", "1000", *shell(script % (gate, others)))
            while "ending the others" not in process.stderr.readline():
                self.assertIsNone(process.poll())
            self.open_gate("go%d" % others)
            _, err = process.communicate(timeout=PATIENCE)
            self.assertEqual(process.returncode, 7)
            self.assertEqual("last lines of rank 1:\ncairn-launch:   last words\n" in err, repeated, err)

    def test_the_others_go_on_when_asked_to(self):
        script = ('if [ $RANK = 2 ]; then kill -KILL $$; fi; '
                  'if [ $RANK = 0 ]; then read < "%s"; exit 3; fi; echo done' % self.gate("go"))
        process = self.start("-n", "3", "--keep-going", *shell(script))
        self.assertEqual(process.stdout.readline(), "[rank 1] done\n")
        while "rank 2 ended by SIGKILL; the others go on" not in process.stderr.readline():
            self.assertIsNone(process.poll())
        self.open_gate("go")
        _, err = process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, 128 + signal.SIGKILL)  # of the first that failed
        self.assertIn("rank 0 exited with 3", err)
        self.assertIn("rank 1 exited with 0", err)

    def test_a_signal_is_reported_by_name(self):
        result = self.launch("-n", "1", *shell("kill -SEGV $$"))
        self.assertEqual(result.returncode, 128 + signal.SIGSEGV)
        self.assertIn("rank 0 ended by SIGSEGV", result.stderr)

    def recorded_ends(self, traces):
        """The lines of each rank that the launcher wrote beside the traces, without process and time."""
        (name,) = [name for name in os.listdir(traces) if name.endswith(".ends")]
        with open(os.path.join(traces, name)) as file:
            first, *lines = file.read().splitlines()
        self.assertRegex(first, r"^launched \d{13} \S+$")
        for line in lines:
            self.assertRegex(line, r"^rank \d+ \d+ \d{13} (code \d+|signal \S+)( told)?$")
        return sorted(re.sub(r"^(rank \d+) \d+ \d+", r"\1", line) for line in lines)

    def test_how_each_process_ended_is_recorded_beside_the_traces(self):
        traces = self.path("traces")
        self.launch("-n", "3", "--keep-going", "--trace", traces, *shell(
            'mkdir -p "%s"; case $RANK in 1) exit 3;; 2) kill -SEGV $$;; esac' % traces))
        self.assertEqual(self.recorded_ends(traces), ["rank 0 code 0", "rank 1 code 3", "rank 2 signal SIGSEGV"])

    def test_ranks_that_the_launcher_ended_are_recorded_as_told(self):
        traces = self.path("traces")
        os.mkdir(traces)
        process = self.start("-n", "2", "--trace", traces, *shell(
            'if [ $RANK = 0 ]; then read < "%s"; exit 3; else echo $$ > "%s/1.pid"; exec sleep 1000; fi'
            % (self.gate("go"), self.directory.name)))
        self.pids(1)
        self.open_gate("go")
        self.assertEqual(process.wait(PATIENCE), 3)
        self.assertEqual(self.recorded_ends(traces), ["rank 0 code 3", "rank 1 signal SIGTERM told"])

    def test_no_directory_of_traces_is_made_for_the_ends_alone(self):
        self.launch("-n", "1", "--trace", self.path("none"), "--", "true")
        self.assertFalse(os.path.exists(self.path("none")))

    def test_the_time_limit(self):
        result = self.launch("-n", "2", "--timeout", "0.5", *shell('echo $$ > "%s/$RANK.pid"; sleep 1000' % self.directory.name))
        self.assertEqual(result.returncode, 124)
        self.assertIn("after 0.5 s still running: ", result.stderr)
        self.assertAllGone(self.pids(2))

    def test_who_ignores_sigterm_is_killed(self):
        script = 'trap "" TERM; echo $$ > "%s/$RANK.pid"; while true; do sleep 1000; done' % self.directory.name
        result = self.launch("-n", "2", "--timeout", "0.5", "--grace", "0.3", *shell(script))
        self.assertEqual(result.returncode, 124)
        self.assertIn("ended by SIGKILL on the word of cairn-launch", result.stderr)
        self.assertAllGone(self.pids(2))

    def test_a_stopped_rank_is_ended_too(self):
        process = self.start("-n", "2", "--grace", "0.3", *shell(
            'echo $$ > "%s/$RANK.pid"; if [ $RANK = 0 ]; then kill -STOP $$; else read < "%s"; exit 3; fi'
            % (self.directory.name, self.gate("go"))))
        pids = self.pids(2)
        self.open_gate("go")
        self.assertEqual(process.wait(PATIENCE), 3)
        self.assertAllGone(pids)

    def test_what_ranks_started_ends_with_them(self):
        here, gate = self.directory.name, self.gate("here")
        script = ('(trap "" TERM HUP; echo $BASHPID > "%s/child.pid"; echo > "%s"; exec sleep 1000) & '
                  'setsid bash -c \'echo $$ > "%s/own-session.pid"; echo > "%s"; exec sleep 1000\' & '
                  'exec 3<> "%s"; read -u 3; read -u 3; exit 0' % (here, gate, here, gate, gate))
        result = self.launch("-n", "1", *shell(script))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertAllGone(self.pids(2))

    # -- signals --------------------------------------------------------------------------------------------------------------

    # A rank in Python: bash may lose a SIGINT that comes while it starts a command.
    TOLD = ("import os, signal, sys, time\n"
            "directory, number, ends = sys.argv[1], int(sys.argv[2]), sys.argv[3] == 'ends'\n"
            "name = os.path.join(directory, os.environ['RANK'])\n"
            "def told(*_):\n"
            "    open(name + '.told', 'w').close()\n"
            "    if ends:\n"
            "        print('saw it', flush=True)\n"
            "        os._exit(0)\n"
            "signal.signal(number, told)\n"
            "open(name + '.pid', 'w').write('%d\\n' % os.getpid())\n"
            "while True: signal.pause()\n")

    def start_told(self, number, then, *options):
        return self.start("-n", "2", *options, "--", sys.executable, "-c", self.TOLD, self.directory.name, str(int(number)), then)

    def interrupt(self, number, by=None):
        process = self.start_told(number, "ends", "--no-prefix")
        pids = self.pids(2)
        process.send_signal(by or number)
        out, _ = process.communicate(timeout=PATIENCE)
        self.assertEqual(out.splitlines(), ["saw it", "saw it"])
        self.assertAllGone(pids)
        return process.returncode

    def test_sigint_is_passed_on(self):
        self.assertEqual(self.interrupt(signal.SIGINT), 0)

    def test_sigterm_is_passed_on(self):
        self.assertEqual(self.interrupt(signal.SIGTERM), 0)

    def test_sighup_is_as_sigterm(self):
        self.assertEqual(self.interrupt(signal.SIGTERM, by=signal.SIGHUP), 0)

    def test_sighup_stays_ignored(self):
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does it
        try:
            process = self.start_told(signal.SIGINT, "ends")
        finally:
            signal.signal(signal.SIGHUP, before)
        self.pids(2)
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(PATIENCE), 0)

    def test_sigusr1_and_sigusr2_are_passed_on_to_programs_and_change_nothing_else(self):
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            script = 'sleep 1000 & echo $! > "%s/$RANK.child"; exec "%s" -c "$0" "%s" %d stays' % (
                self.directory.name, sys.executable, self.directory.name, number)
            process = self.start("-n", "2", *shell(script), self.TOLD)
            pids = self.pids(2)
            for _ in range(2):
                process.send_signal(number)
                for rank in range(2):
                    told = self.path("%d.told" % rank)
                    self.assertTrue(wait_until(lambda: os.path.exists(told)))
                    os.unlink(told)
            for rank in range(2):
                with open(self.path("%d.child" % rank)) as child:
                    self.assertTrue(alive(int(child.read())))
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(PATIENCE), 128 + signal.SIGTERM)  # which came first, and alone
            self.assertAllGone(pids)
            for rank in range(2):
                os.unlink(self.path("%d.pid" % rank))

    def test_ranks_that_die_of_a_signal_passed_on_are_told_in_the_exit_code(self):
        process = self.start("-n", "2", *shell('echo $$ > "%s/$RANK.pid"; exec sleep 1000' % self.directory.name))
        self.pids(2)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(PATIENCE), 128 + signal.SIGTERM)

    def test_a_second_signal_ends_the_patience(self):
        process = self.start_told(signal.SIGINT, "stays", "--grace", "1000")
        pids = self.pids(2)
        process.send_signal(signal.SIGINT)
        self.assertTrue(wait_until(lambda: all(os.path.exists(self.path("%d.told" % rank)) for rank in range(2))))
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(PATIENCE), 128 + signal.SIGKILL)
        self.assertAllGone(pids)

    def test_no_rank_outlives_a_killed_launcher(self):
        script = ('trap "" TERM HUP INT; echo $$ > "%s/$RANK.pid"; (echo $BASHPID > "%s/$RANK.child.pid"; exec sleep 1000) & '
                  'exec sleep 1000' % ((self.directory.name,) * 2))
        process = self.start("-n", "2", *shell(script))
        pids = self.pids(4)
        process.kill()
        process.wait(PATIENCE)
        self.assertAllGone(pids)

    # -- wrong use ------------------------------------------------------------------------------------------------------------

    def test_a_program_that_is_not_there(self):
        result = self.launch("-n", "2", "--", self.path("nothing"))
        self.assertEqual(result.returncode, 127)
        self.assertIn(self.path("nothing"), result.stderr)

    def test_a_program_that_is_not_executable(self):
        open(self.path("text"), "w").close()
        self.assertEqual(self.launch("-n", "2", "--", self.path("text")).returncode, 126)

    def test_too_few_descriptors_for_so_many_ranks(self):
        result = subprocess.run([LAUNCHER, "-n", "40", "--", "sleep", "1000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                timeout=PATIENCE, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40)))
        self.assertEqual(result.returncode, 126)
        self.assertRegex(result.stderr, r"^cairn-launch: cannot start rank \d+: .*raise ulimit -n\n$")

    def test_wrong_use(self):
        for arguments in ([], ["-n", "2"], ["-n", "0", "--", "true"], ["-n", "x", "--", "true"], ["-n", "1", "--env", "X", "--", "true"],
                          ["-n", "1", "--timeout", "-1", "--", "true"], ["-n", "1", "--timeout", "inf", "--", "true"],
                          ["-n", "1", "--timeout", "1e300", "--", "true"], ["-n", "1", "--grace", "nan", "--", "true"], ["-n", "1", "--", ""],
                          ["-n", "1", "--no-such-option", "--", "true"]):
            result = self.launch(*arguments)
            self.assertEqual(result.returncode, 2, arguments)
            self.assertIn("usage: cairn-launch", result.stderr)

    def test_help(self):
        result = self.launch("--help")
        self.assertEqual(result.returncode, 0)
        for word in ("--timeout", "--env", "--keep-going", "--inject", "drop-link", "--grace", "--master-port", "MASTER_ADDR", "SIGHUP", "SIGUSR1",
                     "SIGUSR2", "--log-dir", "Exit code"):
            self.assertIn(word, result.stdout)

    def test_version(self):
        result = self.launch("--version")
        self.assertEqual(result.returncode, 0)
        self.assertRegex(result.stdout, r"^cairn-launch \d+\.\d+\.\d+\n$")


class OutputTest(unittest.TestCase):
    """How lines are folded, from inside, at times of the test's own."""

    class Sink:
        def __init__(self):
            self.text = b""
            self.is_busy = False

        def busy(self):
            return self.is_busy

        def put(self, data):
            self.text += data

    def setUp(self):
        loader = importlib.machinery.SourceFileLoader("cairn_launch", LAUNCHER)
        self.launcher = importlib.util.module_from_spec(importlib.util.spec_from_loader("cairn_launch", loader))
        writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
        loader.exec_module(self.launcher)
        sys.dont_write_bytecode = writes

    def output(self, ranks, no_prefix=False):
        self.ranks = [self.launcher.Rank(number) for number in range(ranks)]
        self.sink = self.Sink()
        return self.launcher.Output(self.sink, types.SimpleNamespace(ranks=ranks, no_prefix=no_prefix, tail=20))

    def test_a_line_that_all_ranks_have_written_does_not_wait(self):
        output = self.output(3)
        for rank in self.ranks:
            self.assertEqual(self.sink.text, b"")
            output.add(rank, [b"equal"], 0.0)
            output.hand_on(0.0)
        self.assertEqual(self.sink.text, b"[ranks 0, 1, 2] equal\n")
        self.assertIsNone(output.due())

    def test_a_line_of_some_ranks_waits_no_longer_than_the_limit(self):
        output = self.output(12)
        output.add(self.ranks[3], [b"equal"], 5.0)
        output.add(self.ranks[10], [b"equal"], 5.1)
        self.assertEqual(output.due(), 5.0 + self.launcher.FOLD_SECONDS)
        output.hand_on(5.1)
        self.assertEqual(self.sink.text, b"")
        output.hand_on(output.due())
        self.assertEqual(self.sink.text, b"[ranks 3, 10] equal\n")
        output.add(self.ranks[4], [b"equal"], 5.3)
        output.hand_on(output.due())
        self.assertEqual(self.sink.text, b"[ranks 3, 10] equal\n[rank  4] equal\n")

    def test_a_rank_that_repeats_a_line_is_not_folded_with_itself(self):
        output = self.output(2)
        output.add(self.ranks[0], [b"y", b"y", b"z"], 0.0)
        output.add(self.ranks[1], [b"y", b"y", b"y"], 0.0)
        output.hand_on(1.0)
        self.assertEqual(self.sink.text, b"[ranks 0, 1] y\n[ranks 0, 1] y\n[rank 0] z\n[rank 1] y\n")

    def test_a_folded_line_is_remembered_where_it_stands(self):
        output = self.output(2)
        output.add(self.ranks[0], [b"boom", *(b"%d" % number for number in range(50))], 0.0)
        output.add(self.ranks[1], [b"other", b"boom", b"end"], 0.0)
        self.assertEqual([(line, place) for line, _, place in self.ranks[1].tail], [(b"other", 51), (b"boom", 52), (b"end", 53)])
        output = self.output(2)
        output.add(self.ranks[0], [b"boom", *(b"%d" % number for number in range(50))], 0.0)
        output.add(self.ranks[1], [b"boom", b"end"], 0.0)
        self.assertEqual([(line, place) for line, _, place in self.ranks[1].tail], [(b"boom", 0), (b"end", 51)])

    def test_nothing_is_lost_and_each_rank_s_lines_stay_in_order(self):
        chance = random.Random(11)
        for _ in range(50):
            output = self.output(5)
            written = {rank.number: [] for rank in self.ranks}
            now = 0.0
            for _ in range(200):
                now += chance.choice((0.0, 0.01, 0.15))
                rank = chance.choice(self.ranks)
                lines = [b"%d" % chance.randrange(3) for _ in range(chance.randrange(4))]
                written[rank.number] += lines
                output.add(rank, lines, now)
                self.sink.is_busy = chance.random() < 0.5
                output.hand_on(now)
            self.sink.is_busy = False
            output.hand_on(now, everything=True)
            read = {rank.number: [] for rank in self.ranks}
            for line in self.sink.text.splitlines():
                names, text = re.fullmatch(rb"\[ranks? ([^]]*)\] (.*)", line).groups()
                for name in names.split(b", "):
                    first, _, last = name.partition(b"-")
                    for number in range(int(first), int(last or first) + 1):
                        read[number].append(text)
            self.assertEqual(read, written)
            self.assertEqual((output.bytes, output.numbers, output.due()), (0, {}, None))

    def test_what_waits_is_bounded(self):
        output = self.output(2)
        self.sink.is_busy = True
        lines = 0
        while not output.full():
            output.add(self.ranks[0], [b"%d" % lines], 0.0)
            lines += 1
        self.assertLess(lines, self.launcher.WAITING_BYTES_MAX // 64)
        self.sink.is_busy = False
        output.hand_on(0.0)
        self.assertEqual(self.sink.text.count(b"\n"), lines)
        self.assertFalse(output.full())

    def test_nothing_is_folded_without_prefix(self):
        output = self.output(2, no_prefix=True)
        for rank in self.ranks:
            output.add(rank, [b"equal"], 0.0)
        output.hand_on(0.0)
        self.assertEqual(self.sink.text, b"equal\nequal\n")


if __name__ == "__main__":
    unittest.main()
