#!/usr/bin/env python3
"""How the project configures on other machines, and inside other projects. Nothing is built here.

usage: configure_test.py SOURCE_DIRECTORY BUILD_DIRECTORY [TEST...]
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(sys.argv[1]).resolve()
BUILD = pathlib.Path(sys.argv[2]).resolve()


def cached(name, cache=BUILD / "CMakeCache.txt"):
    """A variable of a build, or None."""
    found = re.search(rf"^{name}:\w+=(.*)$", cache.read_text(), re.MULTILINE)
    return found[1] if found else None


class Configured(unittest.TestCase):
    """Each test has an empty folder."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="cairn_configure_")
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name).resolve()
        self.build = self.root / "build"

    def cmake(self, *options, source=SOURCE, **more):
        return subprocess.run(["cmake", "-S", source, "-B", self.build, "-G", "Ninja", f"-DCMAKE_CXX_COMPILER={cached('CMAKE_CXX_COMPILER')}",
                               *options], capture_output=True, text=True, **more)

    def configure(self, *options, **more):
        """The library alone, with the options. Returns the output."""
        done = self.cmake("-DCAIRN_BUILD_TESTS=OFF", "-DCAIRN_BUILD_EXAMPLES=OFF", "-DCAIRN_BUILD_BENCHMARKS=OFF",
                          f"-DTorch_DIR={cached('Torch_DIR')}", *options, **more)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def torch_package(self, version, text=""):
        """The CMake package of the LibTorch in use, under another version."""
        package = self.root / f"torch-{version}"
        package.mkdir()
        (package / "TorchConfig.cmake").write_text(f'include("{cached("Torch_DIR")}/TorchConfig.cmake")\n{text}\n')
        (package / "TorchConfigVersion.cmake").write_text(f'set(PACKAGE_VERSION "{version}")\nset(PACKAGE_VERSION_COMPATIBLE TRUE)\n')
        return f"-DTorch_DIR={package}"


class Standard(Configured):
    """The C++ standard follows LibTorch's version."""

    def check(self, compiled, asked):
        """The library is compiled as one standard, and asks its users for another."""
        commands = json.loads((self.build / "compile_commands.json").read_text())
        self.assertEqual({standard for one in commands for standard in re.findall(r"-std=\S+", one["command"])}, {f"-std=c++{compiled}"})
        targets = next(self.build.rglob("cairnTargets.cmake")).read_text()
        self.assertEqual(re.findall(r"cxx_std_\d+", targets), [f"cxx_std_{asked}"])
        package = (self.build / "cairn.pc").read_text()
        self.assertIn(f"# Its headers need C++{asked} or later", package)
        macros = subprocess.run([cached("CMAKE_CXX_COMPILER"), "-dM", "-E", "-x", "c++", "/dev/null"],
                                capture_output=True, text=True, check=True).stdout
        default = int(re.search(r"__cplusplus 20(\d\d)", macros)[1])
        self.assertEqual(re.findall(r"-std=\S+", package), [f"-std=c++{asked}"] if default < asked else [])

    def test_17_before_libtorch_2_13(self):
        self.configure(self.torch_package("2.12.1"))
        self.check(compiled=17, asked=17)

    def test_20_since_libtorch_2_13(self):
        self.configure(self.torch_package("2.13.0"), "-DCMAKE_CXX_STANDARD=17")
        self.check(compiled=20, asked=20)

    def test_a_higher_one_of_the_callers_counts(self):
        self.configure(self.torch_package("2.12.1"), "-DCMAKE_CXX_STANDARD=20")
        self.check(compiled=20, asked=17)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
