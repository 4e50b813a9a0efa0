"""Everything that needs a real S3 server: starts one, runs the test binary and the command `cairn` against it, and stops it.

usage: s3_test.py S3_TESTS CAIRN MAKE_CHECKPOINT CHAR_LM [option of unittest...]      Skipped, with the reason, where no server can be started.
CHAR_LM is "" if the example trainer was not built. `cairn-launch` and `cairn_process_tests` are beside CAIRN.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
import urllib.parse

from fault_matrix import Worker
from fault_proxy import FAULTS, FaultProxy, TlsFront
from metadata_server import ROLE, MetadataServer

S3_TESTS, CAIRN, MAKE_CHECKPOINT, CHAR_LM = sys.argv[1:5]
BINARIES = pathlib.Path(CAIRN).parent
SERVER = pathlib.Path(__file__).with_name("s3_server.sh")
SKIPPED = 77  # SKIP_RETURN_CODE
FINE, FOUND_BAD, WRONG_USE = 0, 1, 2
PLACE = "s3://cairn-test/commands"
REQUESTS_TO_RESUME = 18  # from one kept checkpoint: restore it, and save once
REQUESTS_TO_REMOVE = 6


# Nothing of the machine's own: no keys, and no metadata service that it may have.
NO_KEYS = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_SHARED_CREDENTIALS_FILE": "/nowhere", "AWS_EC2_METADATA_DISABLED": "true",
           "AWS_WEB_IDENTITY_TOKEN_FILE": ""}


def server_address():
    server = urllib.parse.urlsplit(os.environ["AWS_ENDPOINT_URL"])
    return server.hostname, server.port


def cairn(*arguments, **variables):
    return subprocess.run([CAIRN, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **variables})


class Server(unittest.TestCase):
    def test_0_store(self):
        """The first, as it makes the bucket."""
        subprocess.run([S3_TESTS, "-tce=S3 settings*,S3 answers*"], check=True)

    def test_1_rows_of_behaviours_over_a_bucket(self):
        """Those of the process tests whose storage is a place; s3_world_test.cpp has others."""
        for ranks, rows in ((4, "B1.3*,B1.4*,B1.5*,B1.6*"), (2, "B1.3*,B3.2*")):
            place = f"{PLACE}/rows_on_{ranks}"
            subprocess.run([BINARIES / "cairn-launch", "-n", str(ranks), "--timeout", "240", "--", BINARIES / "cairn_process_tests", "-tc=" + rows],
                           check=True, env={**os.environ, "CAIRN_TEST_PLACE": place})
            verified = cairn("verify", place)
            self.assertEqual(verified.returncode, FINE, verified.stdout + verified.stderr)

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
            for source, copy in ((local + "/step_7", PLACE + "/copied/step_7"), (PLACE + "/copied/step_7", local + "/back")):
                copied = cairn("cp", source, copy)
                self.assertEqual(copied.returncode, FINE, copied.stderr)
                self.assertEqual(cairn("verify", copy).returncode, FINE)
                self.assertEqual(cairn("cp", source, copy).returncode, WRONG_USE)
            self.assertEqual(cairn("diff", local + "/back", local + "/step_7").returncode, FINE)
            for form, options in (("safetensors", ["--skip-unsupported"]), ("torch", []), ("dcp", [])):
                results = []
                for source, result in ((PLACE + "/run/step_7", f"{local}/there.{form}"), (local + "/step_7", f"{local}/here.{form}")):
                    converted = cairn("convert", source, result, "--to", form, *options)
                    self.assertEqual(converted.returncode, FINE, converted.stderr)
                    results.append(result)
                self.assertEqual(cairn("diff", *results).returncode, FINE)
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
        nobody = cairn("ls", PLACE + "/run", **NO_KEYS)
        self.assertIn("AWS_ACCESS_KEY_ID", nobody.stderr)
        for answer in (absent, empty, denied, nobody):
            self.assertNotIn(secret, answer.stdout + answer.stderr)
        with FaultProxy(server_address(), faults=["other_region"]) as proxy:
            elsewhere = cairn("ls", PLACE + "/run", AWS_ENDPOINT_URL=proxy.url)
        self.assertIn('the bucket is not in region us-east-1, but in eu-north-1: set AWS_REGION', elsewhere.stderr)

    @unittest.skipUnless(CHAR_LM, "the example trainer is not built")
    def test_a_killed_trainer_goes_on_from_the_bucket_at_another_number_of_ranks(self):
        run = PLACE + "/char_lm"

        def command(ranks, *options):
            return [BINARIES / "cairn-launch", "-n", str(ranks), "--", CHAR_LM, "--dir", run, *map(str, options)]

        def losses(text):
            return dict(re.findall(r"step (\d+) loss (\S+)", text))

        with subprocess.Popen(command(3, "--steps", 100_000, "--save-every", 1), stdout=subprocess.PIPE, text=True) as running:
            for line in running.stdout:
                if "step 4 loss" in line:  # printed after step 3 was saved
                    break
            rank = pathlib.Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()[-1]
            os.kill(int(rank), signal.SIGKILL)  # the launcher ends the others
            running.stdout.read()
        self.assertNotEqual(running.returncode, 0)
        listed = json.loads(cairn("ls", run, "--json").stdout)["checkpoints"]
        saved = max(one["step"] for one in listed)
        self.assertGreaterEqual(saved, 3)
        resumed = subprocess.run(command(2, "--steps", saved + 2, "--save-every", 0, "--resume"), check=True, capture_output=True, text=True)
        whole = subprocess.run([CHAR_LM, "--steps", str(saved + 2), "--save-every", "0"], check=True, capture_output=True, text=True)
        self.assertEqual(losses(resumed.stdout), {step: loss for step, loss in losses(whole.stdout).items() if int(step) > saved})

    def test_faults_of_the_network_and_the_server_change_no_outcome(self):
        # A period that no sequence of requests has, so that in time every kind of request meets every fault.
        with FaultProxy(server_address(), 11, FAULTS) as proxy:
            environment = {**os.environ, "AWS_ENDPOINT_URL": proxy.url}
            for options in (["-tc=a bucket keeps*", "-sc=objects,writing*,discarding,reading,removing,publishing,fencing,publish races fence,refusals*"],
                            ["-tc=a listing*,four ranks*,a file of several parts*,a run in a bucket*"]):
                subprocess.run([S3_TESTS, *options], check=True, env=environment)
            self.assertGreater(proxy.met, 5 * len(FAULTS))

    def test_requests_that_stall_or_trickle_are_given_up_and_repeated(self):
        with FaultProxy(server_address(), 5, ["trickle", "stall"]) as proxy:
            subprocess.run([S3_TESTS, "-tc=requests that stall*"], check=True, env={**os.environ, "AWS_ENDPOINT_URL": proxy.url})
            self.assertGreater(proxy.met, 2)

    def requests_of(self, run, *operations):
        """Those of the last operation, in a process of its own. The others are done before."""
        with FaultProxy(server_address()) as proxy:
            for operation in operations:
                proxy.seen.clear()
                worker = Worker(S3_TESTS, proxy)
                self.assertRegex(worker.ask(operation, run), "^done")
                worker.end()
            return proxy.seen[:]

    def test_requests_do_not_grow_with_the_number_of_removed_checkpoints(self):
        resumed = {}
        for removed in (1, 40, 400):
            resumed[removed] = len(self.requests_of(f"requests/{removed}", "prepare", f"marks{removed}", "resume"))
        self.assertEqual(resumed, dict.fromkeys(resumed, REQUESTS_TO_RESUME))
        # Each checkpoint that is kept costs the read of its record.
        self.assertEqual(len(self.requests_of("requests/two", "prepare", "follow", "resume")), REQUESTS_TO_RESUME + 1)

    def test_each_removal_takes_the_same_number_of_requests(self):
        resumed = [len(self.requests_of(f"requests/removing{count}", *(f"save{step}" for step in range(1, count + 1)), "resume_keeping_one"))
                   for count in (2, 3, 6)]
        # Each costs the read of its record as well.
        self.assertEqual([more - resumed[0] for more in resumed], [removed * (REQUESTS_TO_REMOVE + 1) for removed in (0, 1, 4)])

    def lists(self, answer):
        """The bucket was reached: nothing is at this place in it."""
        self.assertIn("nothing is there", answer.stderr)
        self.assertEqual(answer.returncode, WRONG_USE)

    def list_nothing(self, **variables):
        return cairn("ls", PLACE + "/nothing", **variables)

    def machine(self):
        """A metadata service that gives the keys of the server under test."""
        return MetadataServer(os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"])

    def test_an_instance_gives_the_credentials_of_its_role(self):
        with self.machine() as service:
            on_instance = {**NO_KEYS, "AWS_EC2_METADATA_DISABLED": "", "AWS_EC2_METADATA_SERVICE_ENDPOINT": service.url + "/",
                           "http_proxy": "http://127.0.0.1:1"}
            service.failures = [503]
            self.lists(self.list_nothing(**on_instance))
            self.assertEqual(service.seen, ["PUT /latest/api/token", "GET " + ROLE, "GET " + ROLE, "GET " + ROLE + "trainer"])
            service.failures = [500] * 3
            failed = self.list_nothing(**on_instance)
            self.assertIn("instance metadata service at 127.0.0.1: it answered 500", failed.stderr)
            self.assertNotIn(service.tokens[-1], failed.stdout + failed.stderr)
            service.failures = [404]
            self.assertIn("this instance has no role", self.list_nothing(**on_instance).stderr)
            service.is_silent = True
            unheard = self.list_nothing(**on_instance)
            self.assertIn("in a container, set the hop limit", unheard.stderr)
            service.is_silent = False
            service.seen.clear()
            disabled = self.list_nothing(**{**on_instance, "AWS_EC2_METADATA_DISABLED": "True"})
            self.assertIn("AWS_ACCESS_KEY_ID", disabled.stderr)
            absent_profile = self.list_nothing(**on_instance, AWS_PROFILE="absent")
            self.assertIn('profile "absent"', absent_profile.stderr)
            self.assertEqual(service.seen, [])
            service.secret_key = "another"
            refused = self.list_nothing(**on_instance)
            self.assertIn("secret key", refused.stderr)
        gone = self.list_nothing(**on_instance)
        self.assertIn("AWS_ACCESS_KEY_ID", gone.stderr)
        self.assertIn("instance metadata service at 127.0.0.1", gone.stderr)

    def test_a_container_gives_credentials_for_its_token(self):
        with self.machine() as service, tempfile.NamedTemporaryFile("w") as file:
            service.container_tokens = ["the-token"]
            file.write("the-token\n")
            file.flush()
            in_container = {**NO_KEYS, "AWS_CONTAINER_CREDENTIALS_FULL_URI": service.url + "/container"}
            self.lists(self.list_nothing(**in_container, AWS_CONTAINER_AUTHORIZATION_TOKEN="the-token"))
            self.lists(self.list_nothing(**in_container, AWS_CONTAINER_AUTHORIZATION_TOKEN="old",
                                         AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE=file.name))
            wrong = self.list_nothing(**in_container, AWS_CONTAINER_AUTHORIZATION_TOKEN="wrong-token")
            self.assertIn("it answered 403", wrong.stderr)
            lines = self.list_nothing(**in_container, AWS_CONTAINER_AUTHORIZATION_TOKEN="wrong-token\nX-Other: header")
            self.assertIn("more than one line", lines.stderr)
            unread = self.list_nothing(**in_container, AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE="/nowhere")
            self.assertIn("/nowhere", unread.stderr)
            for url in ("http://example.com/secret-path", "http://127.0.0.1.example.com/secret-path", "http://127.0.0.1@example.com/secret-path",
                        "file:///secret-path"):
                outside = self.list_nothing(**{**in_container, "AWS_CONTAINER_CREDENTIALS_FULL_URI": url})
                self.assertIn("loopback", outside.stderr)
                self.assertNotIn("secret-path", outside.stderr)
            relative = self.list_nothing(**NO_KEYS, AWS_CONTAINER_CREDENTIALS_RELATIVE_URI="@example.com/secret-path")
            self.assertNotIn("secret-path", relative.stderr)
            for answer in (wrong, lines):
                self.assertNotIn("wrong-token", answer.stdout + answer.stderr)

    def test_sts_gives_the_credentials_of_a_role_for_a_web_identity_token(self):
        with self.machine() as service, tempfile.NamedTemporaryFile("w") as file:
            service.web_identities = ["a+token/of&the=pod"]
            file.write("a+token/of&the=pod\n")
            file.flush()
            in_pod = {**NO_KEYS, "AWS_WEB_IDENTITY_TOKEN_FILE": file.name, "AWS_ROLE_ARN": "arn:aws:iam::1:role/trainer",
                      "AWS_ENDPOINT_URL_STS": service.url}
            service.failures = [503]
            self.lists(self.list_nothing(**in_pod))
            self.assertEqual(service.seen, ["POST /", "POST /"])
            self.assertEqual(service.roles, [{"Action": "AssumeRoleWithWebIdentity", "Version": "2011-06-15",
                                              "RoleArn": "arn:aws:iam::1:role/trainer", "RoleSessionName": "cairn"}])
            service.session_token = "of-the-session"
            self.list_nothing(**in_pod, AWS_ENDPOINT_URL=service.url)  # where nothing but the request is looked at
            self.assertEqual(service.session_tokens[-1], "of-the-session")
            service.session_token = ""
            service.seen.clear()
            self.lists(self.list_nothing(**{**in_pod, "AWS_ACCESS_KEY_ID": os.environ["AWS_ACCESS_KEY_ID"],
                                            "AWS_SECRET_ACCESS_KEY": os.environ["AWS_SECRET_ACCESS_KEY"]}))
            self.assertEqual(service.seen, [])
            service.web_identities = ["another"]
            refused = self.list_nothing(**in_pod)
            self.assertIn("STS at 127.0.0.1: it answered 400 InvalidIdentityToken; see AWS_WEB_IDENTITY_TOKEN_FILE", refused.stderr)
            service.failures = [500] * 3
            failed = self.list_nothing(**in_pod)
            self.assertIn("STS at 127.0.0.1: it answered 500", failed.stderr)
            no_role = self.list_nothing(**{**in_pod, "AWS_ROLE_ARN": ""})
            self.assertIn("AWS_ROLE_ARN", no_role.stderr)
            unread = self.list_nothing(**{**in_pod, "AWS_WEB_IDENTITY_TOKEN_FILE": "/nowhere"})
            self.assertIn("cannot read AWS_WEB_IDENTITY_TOKEN_FILE, /nowhere", unread.stderr)
            in_the_clear = self.list_nothing(**{**in_pod, "AWS_ENDPOINT_URL_STS": "http://example.com"})
            self.assertIn("over https:// only", in_the_clear.stderr)
            for answer in (refused, failed, no_role):
                self.assertNotIn("of&the=pod", answer.stdout + answer.stderr)

    def test_a_server_is_trusted_by_its_certificate_only(self):
        with tempfile.TemporaryDirectory() as directory, TlsFront(server_address(), directory) as front:
            self.lists(self.list_nothing(AWS_ENDPOINT_URL=front.url, AWS_CA_BUNDLE=front.authority))
            stranger = self.list_nothing(AWS_ENDPOINT_URL=front.url)
            self.assertIn("certificate", stranger.stderr)
            self.assertIn("AWS_CA_BUNDLE", stranger.stderr)
            absent = self.list_nothing(AWS_ENDPOINT_URL=front.url, AWS_CA_BUNDLE="/nowhere")
            self.assertIn("AWS_CA_BUNDLE is /nowhere", absent.stderr)
            # The certificate is for 127.0.0.1.
            other_name = self.list_nothing(AWS_ENDPOINT_URL=front.url.replace("127.0.0.1", "localhost"), AWS_CA_BUNDLE=front.authority)
            self.assertIn("localhost", other_name.stderr)
            with FaultProxy(server_address()) as proxy:
                through = {"https_proxy": proxy.url, "AWS_ENDPOINT_URL": front.url, "AWS_CA_BUNDLE": front.authority}
                self.lists(self.list_nothing(**through, no_proxy=""))
                self.assertEqual([target for target, _ in proxy.seen], [front.url.removeprefix("https://")])
                self.lists(self.list_nothing(**through, no_proxy="127.0.0.1"))
                self.assertEqual(len(proxy.seen), 1)

    def test_a_bucket_is_reached_by_host_name_and_through_a_proxy(self):
        with FaultProxy(server_address()) as proxy:
            port = proxy.server_address[1]
            by_host = {"AWS_ENDPOINT_URL": f"http://localhost:{port}", "CAIRN_S3_ADDRESSING": "virtual"}
            subprocess.run([MAKE_CHECKPOINT, PLACE + "/by_host/step_7"], check=True, env={**os.environ, **by_host})
            self.assertEqual(cairn("verify", PLACE + "/by_host/step_7").returncode, FINE)
            self.assertEqual({host for _, host in proxy.seen}, {f"cairn-test.localhost:{port}"})
            self.assertFalse(any(target.startswith("/cairn-test") for target, _ in proxy.seen))
            proxy.seen.clear()
            self.assertEqual(cairn("verify", PLACE + "/by_host/step_7", http_proxy=proxy.url, no_proxy="").returncode, FINE)
            self.assertTrue(all(target.startswith(os.environ["AWS_ENDPOINT_URL"] + "/cairn-test") for target, _ in proxy.seen))
            self.assertGreater(len(proxy.seen), 0)
            proxy.seen.clear()
            self.assertEqual(cairn("verify", PLACE + "/by_host/step_7", http_proxy=proxy.url, no_proxy="127.0.0.1").returncode, FINE)
            self.assertEqual(proxy.seen, [])


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
        return 0 if unittest.main(argv=[sys.argv[0], *sys.argv[5:]], exit=False).result.wasSuccessful() else 1
    finally:
        subprocess.run([SERVER, "stop", directory], check=False)
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
