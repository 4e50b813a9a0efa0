#!/usr/bin/env python3
"""Shared libraries export namespace cairn, nothing that mentions a library used inside, and no function or variable that another defines.

usage: check_exports.py LIBRARY...
"""

import pathlib
import re
import subprocess
import sys

from layers import finish

INNER = re.compile(r"google::protobuf|cairn::v1\b|\bcaf::|\bspdlog::|\bfmt::|\bnlohmann::|\bCLI::|"
                   r"\b(SSL|EVP|BIO|X509|OPENSSL|CRYPTO)_|\b(ssl|evp|bio|x509)_\w*st\b|\bcrc32_(iscsi|gzip)|\bio_uring")
# Of a C++ entity, after what the demangler puts in front of it.
OURS = re.compile(r"^(vtable for |typeinfo for |typeinfo name for |VTT for |guard variable for |(non-)?virtual thunk to |"
                  r"covariant return thunk to |construction vtable for )?cairn::")
# What users' programs cannot do without: errors must be caught across the border of a library.
NEEDED = {
    "libcairn": ("typeinfo for cairn::Error", "typeinfo for cairn::CheckpointException", "cairn::save("),
    "libcairn_training": ("cairn::training::fully_shard(", "cairn::training::process_group_from_environment("),
}


def exported(library):
    """For each symbol: its mangled name, its plain name, its kind as nm has it."""
    # Linkers leave some local symbols in the dynamic table, too: nobody can link against those.
    command = ["nm", "--dynamic", "--extern-only", "--defined-only", "--format=posix", library]
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    mangled = [line.split(" ", 1)[0].split("@")[0] for line in listing.splitlines()]
    plain = subprocess.run(["c++filt"], check=True, capture_output=True, text=True, input="\n".join(mangled)).stdout.splitlines()
    return list(zip(mangled, plain, (line.split(" ")[1] for line in listing.splitlines())))


def faults_of(name, symbols):
    for mangled, plain, _ in symbols:
        if INNER.search(plain):
            yield f"{name} exports a symbol of a library used inside: {plain}"
        # Templates are shown with their result type first: there the mangled name decides.
        elif not OURS.match(plain) and not re.match(r"_ZNK?5cairn", mangled):
            yield f"{name} exports a symbol outside namespace cairn: {plain}"
    for needed in NEEDED[name]:
        if not any(plain.startswith(needed) for _, plain, _ in symbols):
            yield f"{name} does not export {needed}"


def main():
    faults, checked, owners = [], 0, {}
    for library in sys.argv[1:]:
        name, symbols = pathlib.Path(library).name.split(".")[0], exported(library)
        faults += faults_of(name, symbols)
        checked += len(symbols)
        for _, plain, kind in symbols:
            # Inline functions and the like (W, V, u) are in every program that uses them, and count once in a process.
            if kind in "TDBRG" and owners.setdefault(plain, name) != name:
                faults.append(f"{name} defines what {owners[plain]} defines: {plain}")
    finish("exports", faults, checked)


if __name__ == "__main__":
    main()
