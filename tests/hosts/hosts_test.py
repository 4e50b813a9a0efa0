#!/usr/bin/env python3
"""Ranks on several hosts, which are network namespaces of this test: what they need, and what happens if the network fails.

usage: hosts_test.py RANKS [CHAR_LM] [unittest arguments]

RANKS is cairn_fault_ranks. The program ends with 77 if this machine cannot make namespaces.
"""

import ctypes
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

import network

RANKS = os.path.abspath(sys.argv[1])
CHAR_LM = os.path.abspath(sys.argv.pop(2)) if len(sys.argv) > 2 and os.path.isfile(sys.argv[2]) else ""
PATIENCE = 120  # seconds; only a hang meets it
SKIPPED = 77
IN_CLOSE_NOWRITE = 0x10
OF_A_JOB = re.compile(r"^(CAIRN|OMPI|PMI|PMIX|MPI|SLURM|TORCHELASTIC|GROUP|ROLE|LOCAL|NCCL|GLOO)_|^(RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT)$")


# Forwards connections to a port of this host to the same port of another one. A connection that the other host does not take is closed.
PROXY = """
import socket, sys, threading

def carry(source, to):
    try:
        while data := source.recv(65536):
            to.sendall(data)
        to.shutdown(socket.SHUT_WR)
    except OSError:
        source.close()
        to.close()

own, other, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
listener = socket.create_server((own, port))
print("ready", flush=True)
while True:
    client = listener.accept()[0]
    try:
        server = socket.create_connection((other, port))
    except OSError:
        client.close()
        continue
    for ends in ((client, server), (server, client)):
        threading.Thread(target=carry, args=ends, daemon=True).start()
"""


class Reads:
    """Waits until processes have read a file."""

    def __init__(self, path):
        libc = ctypes.CDLL(None, use_errno=True)
        self.watch = libc.inotify_init1(os.O_CLOEXEC)
        if self.watch < 0 or libc.inotify_add_watch(self.watch, os.fsencode(path), IN_CLOSE_NOWRITE) < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def wait(self):
        os.read(self.watch, 4096)
        os.close(self.watch)


class HostsTest(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="cairn_hosts_"))
        self.addCleanup(shutil.rmtree, self.root)
        self.directory = self.root / "shared"
        self.directory.mkdir()
        secret = self.root / "secret"
        secret.write_text(os.urandom(32).hex())
        secret.chmod(0o600)
        self.secret = {"CAIRN_SECRET_FILE": str(secret)}
        self.environment = {name: value for name, value in os.environ.items() if not OF_A_JOB.match(name)}
        self.port = 29500  # of this test's hosts; nobody else is there

    def make_network(self, size, **options):
        """Makes hosts that know each other by name."""
        made = network.Network(size, **options)
        self.addCleanup(made.close)
        for host in made.hosts:
            self.write_names(host, made.hosts)
        return made

    def hosts_file(self, host):
        return self.root / f"hosts.{host.number}"

    def write_names(self, host, known):
        self.hosts_file(host).write_text("127.0.0.1 localhost\n" + "".join(f"{one.address} {one.name}\n" for one in known))

    def start(self, hosts, *arguments, program=RANKS, private=None, ranks=None, **variables):
        """Starts one rank on each host, or only some of them. `private`: host -> directories that it does not share."""
        self.port += 1
        started = []
        for rank, host in enumerate(hosts):
            if ranks is not None and rank not in ranks:
                continue
            place = {"RANK": str(rank), "WORLD_SIZE": str(len(hosts)), "LOCAL_RANK": "0", "MASTER_ADDR": hosts[0].name,
                     "MASTER_PORT": str(self.port)}
            command = host.command([program, *arguments], self.hosts_file(host), (private or {}).get(host, ()))
            started.append(subprocess.Popen(command, env={**self.environment, **place, **variables}, stdin=subprocess.DEVNULL,
                                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True))
            self.addCleanup(self.end, started[-1])
        return started

    def start_proxy(self, at, to):
        """Starts a proxy for the port of the next job's store."""
        command = at.command([sys.executable, "-c", PROXY, at.address, to.address, self.port + 1], self.hosts_file(at))
        proxy = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True)
        self.addCleanup(self.end, proxy)
        self.assertEqual(proxy.stdout.readline(), "ready\n")

    @staticmethod
    def end(process):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()

    @staticmethod
    def said_by(ranks):
        return [rank.communicate(timeout=PATIENCE)[0] for rank in ranks]

    def succeed(self, ranks):
        said = self.said_by(ranks)
        self.assertEqual([rank.returncode for rank in ranks], [0] * len(ranks), "\n".join(said))
        return said

    def reports(self, name, ranks):
        return [(self.directory / f"{name}.{rank}").read_text() for rank in ranks]

    def save_twice(self, hosts, **variables):
        """A job that saves generations 1 and 2."""
        for old in self.directory.glob("report.*"):
            old.unlink()
        self.succeed(self.start(hosts, "attempt", self.directory, "save", 0, -1, **{**self.secret, **variables}))
        self.assertEqual(self.reports("report", range(len(hosts))), ["ok\n"] * len(hosts))

    def check_loads(self, hosts, generation):
        said = self.succeed(self.start(hosts, "check", self.directory, **self.secret))
        self.assertEqual(said[0], f"{self.directory} {generation}\n")

    # -- the usual way --------------------------------------------------------------------------------------------------------

    def test_ranks_on_four_hosts_need_only_a_secret(self):
        hosts = self.make_network(4).hosts
        ranks = self.start(hosts, "attempt", self.directory, "save", 0, -1, CAIRN_LOG="info", **self.secret)
        for host, said in zip(hosts, self.succeed(ranks)):
            self.assertRegex(said, rf"and listens at {re.escape(host.address)}:\d+, chosen by the route to {hosts[0].name}\n")
        self.check_loads(hosts, 2)

    def test_the_secret_may_come_from_the_store(self):
        self.save_twice(self.make_network(2).hosts, CAIRN_SECRET_FILE="", CAIRN_SECRET="store")

    def test_the_store_may_be_behind_a_proxy(self):
        hosts = self.make_network(3).hosts
        self.start_proxy(at=hosts[2], to=hosts[0])
        self.save_twice(hosts[:2], MASTER_ADDR=hosts[2].name)

    def test_a_slow_network_that_loses_packets_delays_a_save_only(self):
        slow = self.make_network(4, delay=0.05, loss=0.02)
        self.save_twice(slow.hosts, CAIRN_TEST_CONNECT_MS="60000", CAIRN_TEST_SILENCE_MS="20000")
        self.assertGreater(slow.lost, 0)

    def test_ranks_of_several_hosts_pass_on_what_they_read(self):
        hosts = self.make_network(3).hosts
        ranks = self.start(hosts, "attempt", self.directory, "load", 0, -1, CAIRN_TEST_READ_ONCE="1", **self.secret)
        said = "\n".join(self.succeed(ranks))
        self.assertEqual(self.reports("report", range(3)), ["ok\n"] * 3)
        self.assertNotIn("read_once:", said)  # a rank that has to read for itself says so

    def test_a_rank_that_cannot_be_reached_one_way_reads_for_itself(self):
        hosts = self.make_network(3).hosts
        hosts[1].not_reached.add(hosts[2])
        ranks = self.start(hosts, "attempt", self.directory, "load", 0, -1, CAIRN_TEST_READ_ONCE="1", CAIRN_TEST_SILENCE_MS="2000",
                           **self.secret)
        said = self.succeed(ranks)
        self.assertEqual(self.reports("report", range(3)), ["ok\n"] * 3)
        self.assertNotIn("read_once:", said[0])
        self.assertIn("rank 2 must read for itself what this rank should send: ", said[1])
        self.assertIn("this rank reads for itself what rank 1 should have sent: ", said[2])

    def test_training_groups_follow_the_same_rule(self):
        if not CHAR_LM:
            self.skipTest("char_lm is not built")
        hosts = self.make_network(2).hosts
        self.succeed(self.start(hosts, "--steps", 2, "--save-every", 2, "--dir", self.directory / "run", program=CHAR_LM,
                                OMP_NUM_THREADS="1", **self.secret))
        self.assertTrue((self.directory / "run" / "step_2" / ".metadata").exists())

    # -- names ----------------------------------------------------------------------------------------------------------------

    def test_a_host_whose_own_name_is_a_loopback_address_listens_at_its_network(self):
        hosts = self.make_network(2).hosts
        self.hosts_file(hosts[0]).write_text(f"127.0.0.1 localhost\n127.0.1.1 {hosts[0].name}\n")
        self.save_twice(hosts)

    def test_the_name_of_rank_0_s_host_may_become_known_late(self):
        hosts = self.make_network(2).hosts
        for host in hosts:
            self.write_names(host, ())
        read = [Reads(self.hosts_file(host)) for host in hosts]
        ranks = self.start(hosts, "attempt", self.directory, "save", 0, -1, **self.secret)
        for host, reads in zip(hosts, read):
            reads.wait()
            with open(self.hosts_file(host), "a", encoding="utf-8") as names:
                names.write(f"{hosts[0].address} {hosts[0].name}\n")
        self.succeed(ranks)

    # -- wrong starts ---------------------------------------------------------------------------------------------------------

    def test_without_a_secret_every_rank_says_that_it_needs_one(self):
        ranks = self.start(self.make_network(2).hosts, "attempt", self.directory, "save", 0, -1)
        for said in self.said_by(ranks):
            self.assertIn("CAIRN_SECRET_FILE", said)
            self.assertRegex(said, r"rank [01] listens at 127\.0\.0\.1:\d+, which ranks on other machines")
        self.assertNotIn(0, [rank.returncode for rank in ranks])

    def test_an_interface_that_does_not_exist_is_named_with_those_that_do(self):
        hosts = self.make_network(2).hosts
        ranks = self.start(hosts, "attempt", self.directory, "save", 0, -1, ranks=[0], CAIRN_SOCKET_IFNAME="ib", **self.secret)
        said = self.said_by(ranks)[0]
        self.assertNotEqual(ranks[0].returncode, 0, said)
        self.assertIn('CAIRN_SOCKET_IFNAME is "ib"', said)
        self.assertIn(f"net0 ({hosts[0].address})", said)
        self.assertIn(f"other0 ({hosts[0].stray_address})", said)

    def test_an_interface_that_leads_elsewhere_is_named_by_its_address_when_the_ranks_save(self):
        hosts = self.make_network(2).hosts
        ranks = self.start(hosts, "attempt", self.directory, "save", 0, -1, CAIRN_SOCKET_IFNAME="=other0", **self.secret)
        said = self.said_by(ranks[:1])[0]
        self.assertNotEqual(ranks[0].returncode, 0, said)
        self.assertRegex(said, r"rank 1\b.*" + re.escape(hosts[1].stray_address))

    def test_a_directory_that_the_hosts_do_not_share_gets_no_checkpoint(self):
        hosts = self.make_network(2).hosts
        (self.directory / "checkpoint").mkdir()
        (self.directory / "go").touch()
        self.succeed(self.start(hosts, "save", self.directory, 1, "go", private={hosts[1]: [self.directory / "checkpoint"]}, **self.secret))
        told = self.reports("report.1", range(2))
        self.assertEqual(told[0], told[1])
        self.assertRegex(told[0], r"(?m)^rank 1 1 raised \w+ not_found .*not the same on all machines")
        self.assertFalse((self.directory / "checkpoint" / ".metadata").exists())

    def test_a_load_names_the_host_that_does_not_see_the_checkpoint(self):
        hosts = self.make_network(2).hosts
        self.save_twice(hosts)
        for read_once in ({}, {"CAIRN_TEST_READ_ONCE": "1"}):
            ranks = self.start(hosts, "check", self.directory, private={hosts[1]: [self.directory / "checkpoint"]}, **self.secret,
                               **read_once)
            for said in self.said_by(ranks):
                self.assertRegex(said, r"rank 1 raised in \w+ .*there is no checkpoint at " + re.escape(f"{self.directory}/checkpoint"))
            self.assertNotIn(0, [rank.returncode for rank in ranks])

    # -- cuts -----------------------------------------------------------------------------------------------------------------

    def test_a_host_that_is_cut_off_is_named_and_the_job_resumes_without_it_and_with_it(self):
        hosts = self.make_network(4).hosts
        ranks = self.start(hosts, "save", self.directory, 7, "go", CAIRN_TEST_SILENCE_MS="2000", **self.secret)
        self.await_files([f"written.7.{rank}" for rank in range(4)], ranks)
        hosts[3].cut = True
        (self.directory / "go").touch()
        self.succeed(ranks)
        told = self.reports("report.7", range(4))
        self.assertEqual(len(set(told[:3])), 1, told)
        self.assertRegex(told[0], r"^failed\ncommitted no\n.*\nrank 3 3 (lost|silent) [^\n]*\n$")
        self.assertRegex(told[3], r"^failed\n")

        self.save_twice(hosts[:3])
        hosts[3].cut = False
        self.check_loads(hosts, 2)
        self.save_twice(hosts)

    def await_files(self, names, ranks):
        """Waits for files that ranks post, for as long as all ranks run."""
        while not all((self.directory / name).exists() for name in names):
            for rank in ranks:
                if rank.poll() is not None:
                    self.fail(f"a rank ended before {names}:\n{rank.communicate()[0]}")
            os.sched_yield()


if __name__ == "__main__":
    why = network.missing()
    if why:
        print(f"skipped: {why}")
        sys.exit(SKIPPED)
    result = unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2, exit=False).result
    sys.exit(SKIPPED if result.wasSuccessful() and result.skipped else not result.wasSuccessful())
