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


class Parent(Configured):
    """Inside another project: the library alone, which the project links; none of its settings changes."""

    def check(self, way, standard):
        done = self.cmake(f"-DCAIRN={SOURCE}", f"-DWAY={way}", f"-DSTANDARD={standard}", f"-DTorch_DIR={cached('Torch_DIR')}",
                          source=SOURCE / "tests" / "install" / "parent")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        rules = (self.build / "build.ninja").read_text()
        self.assertEqual(re.findall(r": CXX_EXECUTABLE_LINKER__(\w+?)_\w* ", rules), ["cairn"])
        self.assertEqual(re.findall(r": CXX_SHARED_LIBRARY_LINKER__(\w+)_\w* ", rules), ["cairn_shared"])
        self.assertNotIn("/share/doc", "".join(file.read_text() for file in self.build.rglob("cmake_install.cmake")))
        self.check_variables()
        self.check_flags(standard)

    def check_variables(self):
        before, after = ({name: value for name, _, value in (line.partition("=") for line in (self.build / file).read_text().splitlines())}
                         for file in ("before.txt", "after.txt"))
        changed = {name for name in before if after.get(name) != before[name]}
        self.assertEqual(changed - {"ARGV", "ARGV0", "file"}, set())  # those of note_variables itself
        # Those of GNUInstallDirs and FindThreads hold what CMake has found.
        added = {name for name in after.keys() - before.keys() if name.startswith("CMAKE_")}
        self.assertEqual({name for name in added if not re.match(r"CMAKE_(INSTALL_\w*DIR|HAVE_LIBC_PTHREAD)$", name)}, set())

    def check_flags(self, standard):
        commands = {one["file"]: one["command"] for one in json.loads((self.build / "compile_commands.json").read_text())}
        program = commands.pop(str(SOURCE / "examples" / "embed" / "main.cpp"))
        self.assertIn(re.findall(r"-std=\S+", program), [["-std=gnu++20"]] if standard == 20 else [["-std=gnu++17"], []])  # or the default
        self.assertRegex(program, r"-isystem \S+/include ")
        for flag in ("CAIRN_", "-Wno-error", "-fvisibility=default"):
            self.assertNotIn(flag, program)
        for file, command in commands.items():
            words = command.split()
            for overridden, last in (("-Werror", "-Wno-error"), ("-fvisibility=hidden", "-fvisibility=default")):
                self.assertEqual([word for word in words if word in (overridden, last)][-1], last, file)
            self.assertEqual([word for word in words if word.startswith("-std=")], [f"-std=c++{max(standard, 17)}"], file)

    def test_by_add_subdirectory(self):
        self.check("add_subdirectory", standard=20)

    def test_by_fetch_content(self):
        self.check("FetchContent", standard=14)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
