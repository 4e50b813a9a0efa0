"""The folders of the project, what each may include, and which headers are public. Used by the checks beside this file."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]

# From the bottom up: a folder includes itself and those before it.
FOLDERS = ["base", "planning", "messages", "tracing", "formats", "storage", "actors", "state", "runtime", "training", "tools"]

# The parts of a folder, from the bottom up: a part includes itself and those before it. "" is the folder itself, without its parts.
PARTS = {
    "actors": ["protocol", "links", ""],
    "runtime": ["launch", "observation", "worlds", "checkpoints", "runs", "testing", ""],
}

# Narrower than the order: nothing of these may appear, although they lie below.
FORBIDDEN_FOLDERS = {
    "tracing": {"planning"},
    "formats": {"messages", "tracing"},
    "storage": {"tracing"},
    "actors/protocol": {"formats", "storage"},
    "state": {"messages", "tracing"},
    "training": {"messages", "tracing", "formats", "storage", "actors", "runtime/observation", "runtime/worlds", "runtime/checkpoints", "runtime/runs",
                 "runtime/testing"},
}

# `tools` is written against public headers, as users' programs are. It also includes these, each for a reason.
INTERNAL_FOR_TOOLS = {
    "base/descriptor.hpp": "`doctor` and `convert` own files and sockets as the library does",
    "base/rank_text.hpp": "names ranks as the library's own texts do",
    "base/save_id.hpp": "`convert` and `cp` make a save id of their own",
    "base/settings.hpp": "reads numbers and variables of the environment as the library does",
    "base/status_line.hpp": "there is one status line in a process, above which the log appears",
    "base/units.hpp": "sizes and durations read as in the library's own texts",
    "base/utf8.hpp": "shows names from checkpoints as the library's errors do",
    "planning/closest_names.hpp": "suggests names as the library's errors do",
    "planning/pieces.hpp": "`convert` and `diff` read tensors in pieces that fit into memory, as consolidation does",
    "storage/runs/resume_order.hpp": "`ls` marks the checkpoint that a CheckpointManager resumes from",
    "storage/runs/retention.hpp": "`prune` keeps what a CheckpointManager of the same policy keeps",
    "planning/elements.hpp": "shows, compares and converts elements",
    "formats/saved_value.hpp": "shows values, opaque ones too, and writes files of torch.save that are larger than memory",
    "formats/torch_archive.hpp": "the same: their archives",
    "formats/unpickler.hpp": "the same: values as they would be saved",
    "storage/checkpoint_bytes.hpp": "reads parts of tensors outside of a load",
    "storage/saved_files.hpp": "reads files of others without LibTorch, which may be larger than memory",
    "storage/engine/strided_bytes.hpp": "`convert` gives the writer what it reads from elsewhere, and `cat` joins parts of tensors",
    "storage/copy_checkpoint.hpp": "`cp` copies as tiers do",
    "storage/format/missing_parts.hpp": "`verify` names the ranks that loads name, and `merge` joins records as loads do",
    "storage/format/names.hpp": "`convert` and `ls` tell by their names what Cairn made",
    "formats/safetensors.hpp": "`convert` writes one safetensors file of any source",
    "storage/format/zstd_item.hpp": "reads parts of PyTorch's compressed tensors with one check of the whole",
    "storage/presence.hpp": "`ls` and `prune` tell errors of a store from faults of a checkpoint",
    "planning/stored_items.hpp": "`inspect` sums up what a checkpoint holds by place",
    "storage/publication.hpp": "`convert` removes files of its own unpublished saves",
    "storage/runs/run_directory.hpp": "`ls`, `verify` and `prune` show and remove what lies in a run, sound or not",
    "storage/stores/file_system.hpp": "`convert` writes files as saves do",
}

TORCH = r"(torch|ATen|c10|caffe2)/"
CAF = r"caf/"
PROTOBUF = r"(google/protobuf/|.*\.pb\.h$)"
OPENSSL = r"openssl/"

# Libraries by folder that must not be included there. A subfolder has its own entry or that of its parents.
FORBIDDEN_LIBRARIES = {
    "base": [TORCH, CAF, PROTOBUF],
    "planning": [TORCH, CAF, PROTOBUF, OPENSSL],
    "messages": [TORCH, CAF, OPENSSL],
    "tracing": [TORCH, CAF, OPENSSL],
    "formats": [TORCH, CAF, PROTOBUF, OPENSSL],
    "storage": [TORCH, CAF, OPENSSL],
    "actors": [TORCH],
    "actors/protocol": [TORCH, CAF, OPENSSL],
    "state": [CAF, PROTOBUF, OPENSSL],
    "training": [CAF, PROTOBUF, OPENSSL],
}

# Users never meet these.
FORBIDDEN_IN_PUBLIC = [CAF, PROTOBUF, OPENSSL, r"(spdlog|fmt|nlohmann|CLI|isa-l)/", r"(zlib|zconf|xxhash)\.h$"]
# For users' own tests, which bring doctest along.
NEEDS_DOCTEST = {"runtime/testing/testing.hpp"}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def includes(path):
    """Pairs (line number, included name, whether in quotes)."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match.group(2), match.group(1) == '"'


def sources(folder, *suffixes):
    return sorted(path for path in (ROOT / folder).rglob("*") if path.suffix in suffixes)


def public_headers():
    text = (ROOT / "cmake" / "CairnPublicHeaders.cmake").read_text(encoding="utf-8")
    names = re.findall(r"^\s+([\w/]+\.hpp)\)?$", text, re.MULTILINE)
    if not names:
        sys.exit("cmake/CairnPublicHeaders.cmake lists no headers: this check reads it wrongly")
    return names


def relative(path):
    return path.relative_to(ROOT).as_posix()


def own_part(name):
    return name.split("/", 1)[0]


def check_files(what, paths, faults_of):
    """Calls `faults_of(path)`, which returns the faults of a file and how many things it looked at, for each file. Ends the program."""
    faults, checked = [], 0
    for path in paths:
        more, count = faults_of(path)
        faults += more
        checked += count
    finish(what, faults, checked)


def finish(what, faults, checked):
    """Prints the faults and ends the program. A check that looked at nothing is a failure of its own."""
    for fault in faults:
        print(fault)
    if checked == 0:
        sys.exit(f"{what}: nothing was checked")
    print(f"{what}: {checked} checked, {len(faults)} faults")
    sys.exit(1 if faults else 0)
