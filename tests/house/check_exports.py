#!/usr/bin/env python3
"""libcairn.so exports namespace cairn, and nothing that mentions a library used inside.

usage: check_exports.py LIBRARY
"""

import re
import subprocess
import sys

from layers import finish

INNER = re.compile(r"google::protobuf|cairn::v1\b|\bcaf::|\bspdlog::|\bfmt::|\bnlohmann::|\bCLI::|"
                   r"\b(SSL|EVP|BIO|X509|OPENSSL|CRYPTO)_|\b(ssl|evp|bio|x509)_\w*st\b|\bcrc32_(iscsi|gzip)|\bio_uring")
# Of a C++ entity, after what the demangler puts in front of it.
OURS = re.compile(r"^(vtable for |typeinfo for |typeinfo name for |VTT for |guard variable for |(non-)?virtual thunk to |"
                  r"covariant return thunk to |construction vtable for )?cairn::")


def exported(library):
    # Linkers leave some local symbols in the dynamic table, too: nobody can link against those.
    command = ["nm", "--dynamic", "--extern-only", "--defined-only", "--format=posix", library]
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    mangled = [line.split(" ", 1)[0].split("@")[0] for line in listing.splitlines()]
    plain = subprocess.run(["c++filt"], check=True, capture_output=True, text=True, input="\n".join(mangled)).stdout.splitlines()
    return list(zip(mangled, plain))


def main():
    symbols = exported(sys.argv[1])
    faults = []
    for mangled, plain in symbols:
        if INNER.search(plain):
            faults.append(f"exports a symbol of a library used inside: {plain}")
        # Templates are shown with their result type first: there the mangled name decides.
        elif not OURS.match(plain) and not re.match(r"_ZNK?5cairn", mangled):
            faults.append(f"exports a symbol outside namespace cairn: {plain}")
    texts = {plain for _, plain in symbols}
    # What a user's program cannot do without: errors must be caught across the library's border.
    for needed in ("typeinfo for cairn::Error", "typeinfo for cairn::CheckpointException"):
        if needed not in texts:
            faults.append(f"does not export {needed}")
    if not any(text.startswith("cairn::save(") for text in texts):
        faults.append("does not export cairn::save")
    finish("exports", faults, len(symbols))


if __name__ == "__main__":
    main()
