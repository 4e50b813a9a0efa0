#!/usr/bin/env python3
"""A type that cairn::Value cannot hold does not compile, and the compiler says why.

usage: value_message_test.py BUILD_DIRECTORY
"""

import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "house"))
from check_headers import flags_of_runtime

MESSAGE = "cairn::Value cannot hold this type"
SOURCE = """#include <cairn/state/state_dict.hpp>
#include <map>
#include <unordered_map>
#include <vector>
struct Own {};
enum class Choice { kOne };
struct Converts { operator cairn::Value() const { return 1; } };
"""
LINE = "const cairn::StateDict held_%d{{\"key\", %s}};\n"
HELD = ["torch::Tensor()", "1", "1.5f", "true", '"text"', "std::string()", "cairn::Blob{}", "cairn::List{1}", "Converts()", "c10::IValue(1)", "c10::IValue(std::vector<double>{1})"]
NOT_HELD = ["Own()", "std::vector<float>()", "std::vector<std::vector<float>>()", "std::unordered_map<std::string, float>()", "Choice::kOne", "std::map<int, int>()", "std::vector<Own>()", "std::make_shared<Own>()", "[] {}"]


def main():
    flags, faults = flags_of_runtime(pathlib.Path(sys.argv[1]).resolve()), []
    with tempfile.TemporaryDirectory() as scratch:
        # Two sources, one line for each value, because LibTorch's headers take seconds. An error says from which line its template was asked for.
        for name, values, refused in [("held", HELD, 0), ("not_held", NOT_HELD, len(NOT_HELD))]:
            unit = pathlib.Path(scratch, name + ".cpp")
            unit.write_text(SOURCE + "".join(LINE % pair for pair in enumerate(values)), encoding="utf-8")
            done = subprocess.run([*flags, "-fsyntax-only", unit], capture_output=True, text=True, errors="replace", check=False)
            lines = {found for said in done.stderr.split(MESSAGE)[:-1] for found in re.findall(rf"{name}\.cpp:(\d+):\d+:\s+required from here", said)[-1:]}
            if (done.returncode == 0) != (refused == 0) or len(lines) != refused:
                faults.append(f"{name}: exit code {done.returncode}, refused in the lines {lines}\n{done.stderr[:4000]}")
    print("\n".join(faults) or f"{len(HELD)} types are held, {len(NOT_HELD)} are refused with a message")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
