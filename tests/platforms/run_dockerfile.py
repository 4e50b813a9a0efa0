#!/usr/bin/env python3
"""Executes docker/Dockerfile without Docker: each of its images is a chroot of Debian 12, in which its RUN lines are executed.

usage: run_dockerfile.py [FOLDER]

FOLDER, build/platforms/dockerfile if none is given, has the chroots afterwards. Needs root, mmdebstrap, Debian's mirror and 8 GB; ends with
77 if one of the first two is missing. Understands the instructions that the file uses: FROM, WORKDIR, COPY and RUN.
"""

import os
import pathlib
import shutil
import subprocess
import sys

SOURCE = pathlib.Path(__file__).resolve().parents[2]
SUITES = {"debian:12": "bookworm"}
SKIPPED = 77


def instructions(text):
    """The words of each instruction, comments and empty lines left out; the last word of RUN is the whole command."""
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip() and not line.startswith("#"):
            yield line.split(None, 1)


class Image:
    """One chroot, and the folder within it in which commands run."""

    def __init__(self, root, suite):
        self.root, self.folder = root, "/"
        shutil.rmtree(root, ignore_errors=True)
        subprocess.run(["mmdebstrap", "--variant=minbase", "--include=ca-certificates", suite, root], check=True)

    def run(self, command):
        shutil.copy("/etc/resolv.conf", self.root / "etc/resolv.conf")
        subprocess.run(["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c",
                        'mount --rbind /dev "$0/dev" && mount -t proc proc "$0/proc" && exec chroot "$0" '
                        'env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root sh -c "cd $1 && $2"',
                        self.root, self.folder, command], check=True)

    def path(self, name):
        return self.root / (pathlib.PurePosixPath(self.folder) / name).relative_to("/")

    def copy(self, words, images):
        origin = SOURCE
        if words[0].startswith("--from="):
            origin = images[words.pop(0).removeprefix("--from=")].root
        *patterns, target = words
        to = self.path(target)
        for pattern in patterns:
            found = [origin] if pattern == "." else sorted(origin.glob(pattern.lstrip("/")))
            if not found:
                raise SystemExit(f"COPY {pattern}: there is no such file in {origin}")
            for path in found:
                to.mkdir(parents=True, exist_ok=True)
                if path.is_dir():  # its contents, but for what .dockerignore names
                    ignored = [line.lstrip("/") for line in (SOURCE / ".dockerignore").read_text().split() if line.startswith("/")]
                    for entry in path.iterdir():
                        if entry.is_dir() and entry.name not in ignored:
                            shutil.copytree(entry, to / entry.name, dirs_exist_ok=True)
                        elif not entry.is_dir():
                            shutil.copy2(entry, to)
                else:
                    shutil.copy2(path, to)


def main():
    if os.geteuid() != 0 or not shutil.which("mmdebstrap"):
        print("skipped: making chroots needs root and mmdebstrap")
        return SKIPPED
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else SOURCE / "build/platforms/dockerfile").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    images, image = {}, None
    for name, rest in instructions((SOURCE / "docker/Dockerfile").read_text()):
        print(f"=== {name} {rest}", flush=True)
        if name == "FROM":
            base, _, alias = rest.partition(" AS ")
            alias = alias or "last"
            images[alias] = image = Image(folder / alias, SUITES[base])
        elif name == "WORKDIR":
            image.folder = rest
            image.path(".").mkdir(parents=True, exist_ok=True)
        elif name == "COPY":
            image.copy(rest.split(), images)
        elif name == "RUN":
            image.run(rest)
        else:
            raise SystemExit(f"{name} is unknown here")
    print("=== all instructions were executed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
