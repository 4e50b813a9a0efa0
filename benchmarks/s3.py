#!/usr/bin/env python3
"""A save to a bucket and a load from it, beside what curl sends and receives with as many connections, on one server.

usage: s3.py BIN_DIRECTORY [--quick]

The server is Ceph's object gateway, which tests/s3/s3_server.sh starts. curl sends each half of the data in one request, and receives it
likewise. The server checks the SHA-256 of what both send; curl is given it, and computes nothing. Rounds alternate. Figures are medians, as
one JSON object a line: {name, value, unit, limit, ratio, goal, met}. The growth of memory has the limit of the staging memory.
"""

import hashlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import uuid

SERVER = pathlib.Path(__file__).resolve().parents[1] / "tests/s3/s3_server.sh"
STREAMS = 2  # SaveOptions::writer.threads and LoadOptions::reader.threads
STAGING_MIB = 64  # WriterOptions::bytes_in_flight_max


def curl(*arguments, sha256=hashlib.sha256().hexdigest()):
    key = f"{os.environ['AWS_ACCESS_KEY_ID']}:{os.environ['AWS_SECRET_ACCESS_KEY']}"
    return subprocess.Popen(["curl", "-sSf", "--aws-sigv4", "aws:amz:us-east-1:s3", "--user", key,
                             "-H", f"x-amz-content-sha256: {sha256}", *arguments])


def together(processes):
    if any([process.wait() for process in processes]):
        raise RuntimeError("curl failed")


def measured(action):
    started = time.monotonic()
    action()
    return time.monotonic() - started


def main():
    binaries, quick = pathlib.Path(sys.argv[1]), "--quick" in sys.argv[2:]
    mib, rounds = (64, 1) if quick else (256, 5)  # the server keeps everything in memory
    with tempfile.TemporaryDirectory(prefix="cairn_s3_") as directory:
        started = subprocess.run([SERVER, "start", directory], stdout=subprocess.PIPE, text=True, check=False)
        if started.returncode != 0:
            print(started.stdout, end="")
            return 0
        try:
            for line in pathlib.Path(directory, "environment").read_text(encoding="ascii").splitlines():
                name, value = line.removeprefix("export ").split("=", 1)
                os.environ[name] = value
            times = {"curl up": [], "curl down": [], "save": [], "load": []}
            memory = {"save": [], "load": []}
            bucket = f"{os.environ['AWS_ENDPOINT_URL']}/benchmark"
            together([curl("-X", "PUT", bucket)])
            half = pathlib.Path(directory, "half")
            content = os.urandom(mib // STREAMS << 20)
            half.write_bytes(content)
            sha256 = hashlib.sha256(content).hexdigest()
            for _ in range(rounds):
                urls = [f"{bucket}/half_{stream}" for stream in range(STREAMS)]
                times["curl up"].append(measured(lambda: together([curl("-T", half, url, sha256=sha256) for url in urls])))
                times["curl down"].append(measured(lambda: together([curl("-o", "/dev/null", url) for url in urls])))
                together([curl("-X", "DELETE", url) for url in urls])
                place = f"s3://benchmark/{uuid.uuid4()}"
                told = subprocess.run([binaries / "cairn_s3_benchmark", place, str(mib)], check=True, stdout=subprocess.PIPE, text=True)
                for line in told.stdout.splitlines():
                    name, seconds, grown = line.split()
                    times[name].append(float(seconds))
                    memory[name].append(float(grown))
        finally:
            subprocess.run([SERVER, "stop", directory], check=False)
    for name, base in (("save", "curl up"), ("load", "curl down")):
        value, limit = (mib / statistics.median(times[of]) for of in (name, base))
        print(json.dumps({"name": f"s3_{name}", "value": value, "unit": "MiB/s", "limit": limit, "ratio": value / limit,
                          "goal": "at least 0.9 of curl's", "met": value >= 0.9 * limit}))
        grown = max(memory[name])
        print(json.dumps({"name": f"s3_{name}_memory", "value": grown, "unit": "MiB", "limit": STAGING_MIB, "ratio": grown / STAGING_MIB}))
    return 0


sys.exit(main())
