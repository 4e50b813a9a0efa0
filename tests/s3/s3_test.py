"""Everything that needs a real S3 server: starts one, runs the test binary and the command `cairn` against it, and stops it.

usage: s3_test.py S3_TESTS CAIRN MAKE_CHECKPOINT [option of unittest...]      Skipped, with the reason, where no server can be started.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import urllib.parse

from fault_proxy import FAULTS, FaultProxy

S3_TESTS, CAIRN, MAKE_CHECKPOINT = sys.argv[1:4]
SERVER = pathlib.Path(__file__).with_name("s3_server.sh")
SKIPPED = 77  # SKIP_RETURN_CODE
FINE, FOUND_BAD, WRONG_USE = 0, 1, 2
PLACE = "s3://cairn-test/commands"


def cairn(*arguments, **variables):
    return subprocess.run([CAIRN, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **variables})


class Server(unittest.TestCase):
    def test_0_store(self):
        """The first, as it makes the bucket."""
        subprocess.run([S3_TESTS, "-tce=S3 settings*"], check=True)

    def test_commands_do_the_same_in_a_bucket_as_in_a_directory(self):
        with tempfile.TemporaryDirectory() as local:
            for run in (PLACE + "/run", local):
                subprocess.run([MAKE_CHECKPOINT, run + "/step_7"], check=True)
                subprocess.run([MAKE_CHECKPOINT, run + "/step_8", "--step", "8", "--grid"], check=True)
            for arguments in (["inspect", "{}/step_7"], ["cat", "{}/step_7", "model.weight"], ["verify", "{}/step_7"], ["verify", "{}"],
                              ["diff", "{}/step_7", "{}/step_8"]):
                with self.subTest(arguments):
                    there, here = (cairn(*(argument.format(run) for argument in arguments)) for run in (PLACE + "/run", local))
                    self.assertEqual(there.returncode, here.returncode, there.stderr)
                    self.assertEqual(there.stderr, "")
                    if arguments[0] in ("cat", "diff"):
                        self.assertEqual(there.stdout.replace(PLACE + "/run", local), here.stdout)
            self.assertEqual(cairn("diff", PLACE + "/run/step_7", local + "/step_7").returncode, FINE)
            listed = json.loads(cairn("ls", PLACE + "/run", "--json").stdout)
            self.assertEqual([one["name"] for one in listed["checkpoints"]], ["step_8", "step_7"])
            self.assertEqual(cairn("prune", PLACE + "/run", "--keep", "last=1", "--yes").returncode, FINE)
            listed = json.loads(cairn("ls", PLACE + "/run", "--json").stdout)
            self.assertEqual([one["name"] for one in listed["checkpoints"]], ["step_8"])

    def test_wrong_places_and_keys_say_what_is_wrong_and_no_secret(self):
        secret = os.environ["AWS_SECRET_ACCESS_KEY"]
        absent = cairn("ls", "s3://cairn-no-such-bucket/run")
        self.assertIn("there is no bucket", absent.stderr)
        empty = cairn("ls", PLACE + "/nothing")
        self.assertEqual(empty.returncode, WRONG_USE)
        self.assertIn("nothing is there", empty.stderr)
        denied = cairn("ls", PLACE + "/run", AWS_SECRET_ACCESS_KEY="another")
        self.assertIn("secret key", denied.stderr)
        nobody = cairn("ls", PLACE + "/run", AWS_ACCESS_KEY_ID="", AWS_SHARED_CREDENTIALS_FILE="/nowhere")
        self.assertIn("AWS_ACCESS_KEY_ID", nobody.stderr)
        for answer in (absent, empty, denied, nobody):
            self.assertNotIn(secret, answer.stdout + answer.stderr)


    def test_faults_of_the_network_and_the_server_change_no_outcome(self):
        server = urllib.parse.urlsplit(os.environ["AWS_ENDPOINT_URL"])
        # A period that no sequence of requests has, so that in time every kind of request meets every fault.
        with FaultProxy((server.hostname, server.port), 11, FAULTS) as proxy:
            environment = {**os.environ, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.server_address[1]}"}
            for options in (["-tc=a bucket keeps*", "-sc=objects,writing*,discarding,reading,removing,publishing,fencing,publish races fence,refusals*"],
                            ["-tc=a listing*,four ranks*,a file of several parts*,of two jobs*,a run in a bucket*"]):
                subprocess.run([S3_TESTS, *options], check=True, env=environment)
            self.assertGreater(proxy.met, 5 * len(FAULTS))

    def test_requests_that_stall_are_given_up_and_repeated(self):
        server = urllib.parse.urlsplit(os.environ["AWS_ENDPOINT_URL"])
        with FaultProxy((server.hostname, server.port), 7, ["stall"]) as proxy:
            subprocess.run([S3_TESTS, "-tc=requests that stall*"], check=True, env={**os.environ, "AWS_ENDPOINT_URL": proxy.url})
            self.assertGreater(proxy.met, 0)


def main():
    directory = tempfile.mkdtemp(prefix="cairn_s3_")
    try:
        started = subprocess.run([SERVER, "start", directory], stdout=subprocess.PIPE, text=True)
        if started.returncode != 0:
            print(started.stdout, end="")
            return started.returncode
        for line in pathlib.Path(directory, "environment").read_text().splitlines():
            name, value = line.removeprefix("export ").split("=", 1)
            os.environ[name] = value
        return 0 if unittest.main(argv=[sys.argv[0], *sys.argv[4:]], exit=False).result.wasSuccessful() else 1
    finally:
        subprocess.run([SERVER, "stop", directory], check=False)
        shutil.rmtree(directory, ignore_errors=True)


sys.exit(main())
