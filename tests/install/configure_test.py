#!/usr/bin/env python3
"""Configures the project as other machines have it, and inside other projects. Builds nothing.

usage: configure_test.py SOURCE_DIRECTORY BUILD_DIRECTORY [TEST...]
"""

import json
import os
import pathlib
import re
import shlex
import shutil
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

    def cmake(self, *options, source=SOURCE, generator="Ninja", **more):
        return subprocess.run(["cmake", "-S", source, "-B", self.build, "-G", generator, f"-DCMAKE_CXX_COMPILER={cached('CMAKE_CXX_COMPILER')}",
                               f"-DPython3_EXECUTABLE={sys.executable}", *options], capture_output=True, text=True, **more)

    def configure(self, *options, **more):
        """The library alone, with the options. Returns the output."""
        done = self.cmake("-DCAIRN_BUILD_TESTS=OFF", "-DCAIRN_BUILD_EXAMPLES=OFF", "-DCAIRN_BUILD_BENCHMARKS=OFF",
                          f"-DTorch_DIR={cached('Torch_DIR')}", *options, **more)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def commands(self):
        """What is compiled: the file, and the words of the command."""
        entries = json.loads((self.build / "compile_commands.json").read_text())
        return {one["file"]: shlex.split(one["command"]) for one in entries}

    def batches(self, *folders):
        """The sources of each file of a unity build of these folders, in order."""
        files = [file for folder in folders for file in sorted(self.build.glob(f"{folder}/**/Unity/*.cxx"))]
        return [re.findall(r'#include "(.*)"', file.read_text()) for file in files]

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


class Dependencies(Configured):
    """The search for libraries, and the sentence about each one that is missing."""

    def torch_wheel(self):
        """The folder of Python packages of a PyTorch with CUDA, which brings headers of an old Protobuf."""
        site = self.root / "site"
        torch = site / "torch"
        for folder in (torch / "utils", torch / "share/cmake/Torch", torch / "include/google/protobuf", site / "nvidia/nccl/include"):
            folder.mkdir(parents=True)
        (torch / "__init__.py").touch()
        (torch / "utils" / "__init__.py").write_text(f"cmake_prefix_path = {str(torch / 'share/cmake')!r}\n")
        (torch / "include/google/protobuf/service.h").touch()
        (site / "nvidia/nccl/include/nccl.h").touch()
        self.torch_package("2.13.0", f'set(TORCH_INSTALL_PREFIX "{torch}")\nlist(PREPEND TORCH_INCLUDE_DIRS "{torch}/include")\n'
                           "add_library(c10_cuda INTERFACE IMPORTED)").removeprefix("-DTorch_DIR=")
        for file in (self.root / "torch-2.13.0").iterdir():
            file.rename(torch / "share/cmake/Torch" / file.name)
        return site

    def test_a_python_package_of_pytorch_is_found_with_its_nccl(self):
        site = self.torch_wheel()
        # The system's LibTorch is hidden. A prefix that names the package, too, does not make its Protobuf the one in use.
        done = self.cmake("-DCAIRN_BUILD_TESTS=OFF", f"-DCMAKE_IGNORE_PATH={cached('Torch_DIR')}", f"-DCMAKE_PREFIX_PATH={site / 'torch'}",
                          env={**os.environ, "PYTHONPATH": str(site)})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        cache = self.build / "CMakeCache.txt"
        self.assertEqual(cached("Torch_DIR", cache), str(site / "torch/share/cmake/Torch"))
        self.assertEqual(cached("Protobuf_INCLUDE_DIR", cache), cached("Protobuf_INCLUDE_DIR"))
        self.assertEqual((self.build / "protobuf/google").resolve(), pathlib.Path(cached("Protobuf_INCLUDE_DIR"), "google").resolve())
        commands = {one["file"]: one["command"].split() for one in json.loads((self.build / "compile_commands.json").read_text())}
        with_both = [words for words in commands.values() if f"{site}/torch/include" in words and f"{self.build}/messages" in words]
        self.assertNotEqual(with_both, [])
        for words in with_both:
            self.assertLess(words.index(f"{self.build}/protobuf"), words.index(f"{site}/torch/include"))
        nccl = next(words for file, words in commands.items() if file.endswith("/nccl_backend.cpp"))
        self.assertIn(f"{site}/nvidia/nccl/include", [os.path.normpath(word) for word in nccl])

    def test_each_missing_library_gets_a_sentence(self):
        done = self.cmake(*(f"-DCMAKE_DISABLE_FIND_PACKAGE_{name}=ON" for name in ("OpenSSL", "ZLIB", "Protobuf", "CURL", "zstd", "fmt", "CLI11", "nlohmann_json")),
                          "-DCAIRN_WITH_S3=ON", "-DCAIRN_WITH_ZSTD=ON",
                          *(f"-D{name}:PATH=" for name in ("CAF_INCLUDE_DIR", "ISAL_INCLUDE_DIR", "XXHASH_INCLUDE_DIR", "GLOO_INCLUDE_DIR",
                                                           "DOCTEST_INCLUDE_DIR", "Protobuf_PROTOC_EXECUTABLE")))
        self.assertNotEqual(done.returncode, 0)
        self.check_sentences(done.stderr, ["libssl-dev", "zlib1g-dev", "libprotobuf-dev", "protobuf-compiler", "libcaf-dev", "libisal-dev", "libxxhash-dev",
                                           "libcurl4-openssl-dev", "libzstd-dev", "libgloo-dev", "nlohmann-json3-dev", "libfmt-dev", "libcli11-dev", "doctest-dev"])

    def test_without_libcurl_the_store_for_buckets_is_left_out(self):
        told = self.configure("-DCMAKE_DISABLE_FIND_PACKAGE_CURL=ON")
        self.assertRegex(told, r"-- S3: off; .*libcurl4-openssl-dev")
        commands = json.loads((self.build / "compile_commands.json").read_text())
        self.assertEqual([one["file"] for one in commands if "/s3_" in one["file"] or "CAIRN_WITH_S3" in one["command"]], [])

    def test_without_zstd_compression_is_left_out(self):
        told = self.configure("-DCMAKE_DISABLE_FIND_PACKAGE_zstd=ON")
        self.assertRegex(told, r"-- Compression: off; .*libzstd-dev")
        commands = json.loads((self.build / "compile_commands.json").read_text())
        self.assertEqual([one["file"] for one in commands if "CAIRN_WITH_ZSTD" in one["command"]], [])

    def test_a_missing_libtorch_gets_a_sentence(self):
        done = self.cmake("-DCMAKE_DISABLE_FIND_PACKAGE_Torch=ON")
        self.assertNotEqual(done.returncode, 0)
        self.check_sentences(done.stderr, ["libtorch-dev"])

    def test_cuda_without_nccl_gets_a_sentence(self):
        done = self.cmake("-DNCCL_INCLUDE_DIR:PATH=", self.torch_package("2.6.0", "add_library(c10_cuda INTERFACE IMPORTED)"))
        self.assertNotEqual(done.returncode, 0)
        self.check_sentences(done.stderr, ["libnccl-dev"])

    def test_another_caf_gets_a_sentence(self):
        header = self.root / "caf" / "caf" / "config.hpp"
        header.parent.mkdir(parents=True)
        header.write_text("#define CAF_VERSION 10002\n")
        done = self.cmake(f"-DCAF_INCLUDE_DIR={self.root / 'caf'}", f"-DTorch_DIR={cached('Torch_DIR')}")
        self.assertNotEqual(done.returncode, 0)
        self.check_sentences(done.stderr, ["libcaf-dev"])

    def test_a_libtorch_of_the_old_abi_gets_a_sentence(self):
        done = self.cmake(self.torch_package("2.6.0", 'set(TORCH_CXX_FLAGS "-D_GLIBCXX_USE_CXX11_ABI=0")'))
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(done.stderr.count("CMake Error"), 1, done.stderr)
        self.assertRegex(done.stderr, r"Cairn cannot be built here:\s+LibTorch in \S+ is of another ABI .*: install PyTorch 2\.7 or later")

    def check_sentences(self, errors, packages):
        """There is one error, with a line for each package."""
        self.assertEqual(errors.count("CMake Error"), 1, errors)
        lines = re.search(r"Cairn cannot be built here:\n(.*?)\n *CMAKE_PREFIX_PATH names", errors, re.DOTALL)[1].splitlines()
        self.assertEqual(len([line for line in lines if line.strip()]), len(packages), errors)
        for line, package in zip(filter(str.strip, lines), packages):
            self.assertRegex(line, rf"^ +\S.* (is|are) (missing|of another version).*\b{package}\b.*\.$")

    def test_nccl_root_names_the_folder_of_its_header(self):
        header = self.root / "nccl/include/nccl.h"
        header.parent.mkdir(parents=True)
        header.touch()
        self.configure(f"-DNCCL_ROOT={self.root / 'nccl'}", self.torch_package("2.6.0", "add_library(c10_cuda INTERFACE IMPORTED)"))
        self.assertEqual(cached("NCCL_INCLUDE_DIR", self.build / "CMakeCache.txt"), str(header.parent))


class Parts(Configured):
    """The options CAIRN_BUILD_* and CAIRN_INSTALL."""

    def programs(self, *options):
        """The programs that are built with these options, and otherwise with every part off."""
        done = self.cmake("-DCMAKE_BUILD_TYPE=Release", f"-DTorch_DIR={cached('Torch_DIR')}",
                          *(f"-DCAIRN_BUILD_{part}=OFF" for part in ("COMMANDS", "TESTS", "EXAMPLES", "BENCHMARKS")), *options)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return set(re.findall(r": CXX_EXECUTABLE_LINKER__(\w+)_Release ", (self.build / "build.ninja").read_text()))

    def test_each_part_adds_its_programs(self):
        self.assertEqual(self.programs(), set())
        commands = {"cairn_command"}
        self.assertEqual(self.programs("-DCAIRN_BUILD_COMMANDS=ON"), commands)
        self.assertTrue(next(self.build.rglob("cairn-launch")).is_file())
        self.assertEqual(self.programs("-DCAIRN_BUILD_EXAMPLES=ON"), {"char_lm", "slowest_hooks"})
        self.assertLess(commands | {"cairn_storage_tests", "cairn_process_tests"}, self.programs("-DCAIRN_BUILD_TESTS=ON"))
        benchmarks = self.programs("-DCAIRN_BUILD_BENCHMARKS=ON")
        self.assertIn("cairn_save_load_benchmark", benchmarks)
        self.assertEqual({name for name in benchmarks if not name.endswith("_benchmark")}, set())

    def test_without_cairn_install_nothing_is_installed(self):
        def installed():
            return [file for file in self.build.rglob("cmake_install.cmake") if "file(INSTALL" in file.read_text()]

        self.programs("-DCAIRN_BUILD_COMMANDS=ON")
        self.assertNotEqual(installed(), [])
        self.programs("-DCAIRN_BUILD_COMMANDS=ON", "-DCAIRN_INSTALL=OFF")
        self.assertEqual(installed(), [])


class Flags(Configured):
    """The batches, flags and build type that a user gives are used. Cairn's own stand in for those that were not given."""

    FOLDERS = ("base", "planning", "messages", "tracing", "state", "storage", "actors", "runtime", "training")

    def flags(self, *options, **more):
        """The options of optimization and debug information with which the library is compiled."""
        self.configure(*options, **more)
        found = {tuple(word for word in words if re.match(r"-(O|g|march|DNDEBUG)", word))
                 for file, words in self.commands().items() if file.startswith(f"{SOURCE}/")}
        self.assertEqual(len(found), 1, found)
        return " ".join(*found)

    def test_flags_of_a_configuration(self):
        for name, options, flags in (
            ("none", [], "-O2 -DNDEBUG"),
            ("debug", ["-DCMAKE_BUILD_TYPE=Debug"], "-O0 -g1"),
            ("type", ["-DCMAKE_BUILD_TYPE=RelWithDebInfo"], "-O2 -g -DNDEBUG"),
            ("release flags", ["-DCMAKE_CXX_FLAGS_RELEASE=-O1"], "-O1"),
            ("flags of CMake's", ["-DCMAKE_CXX_FLAGS_RELEASE=-O3 -DNDEBUG"], "-O3 -DNDEBUG"),
            ("no flags", ["-DCMAKE_CXX_FLAGS_RELEASE="], ""),
            ("debug flags", ["-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-Og -g3"], "-Og -g3"),
            ("common flags", ["-DCMAKE_CXX_FLAGS=-march=x86-64-v2"], "-march=x86-64-v2 -O2 -DNDEBUG"),
        ):
            with self.subTest(name):
                self.build = self.root / name
                self.assertEqual(self.flags(*options), flags)

    def test_flags_of_a_toolchain(self):
        toolchain = self.root / "toolchain.cmake"
        toolchain.write_text('set(CMAKE_CXX_FLAGS_RELEASE_INIT "-march=x86-64-v3")\n')
        self.assertEqual(self.flags(f"-DCMAKE_TOOLCHAIN_FILE={toolchain}"), "-march=x86-64-v3 -O3 -DNDEBUG")

    def test_a_build_type_that_is_chosen_is_said(self):
        chosen = r"-- Cairn: no build type was given; .*Release"
        self.assertRegex(self.configure(), chosen)
        for type in ("Release", "Debug"):
            self.assertNotRegex(self.configure(f"-DCMAKE_BUILD_TYPE={type}"), chosen)
        self.build = self.root / "multi"
        self.assertNotRegex(self.configure("-DCMAKE_CONFIGURATION_TYPES=Debug;Release", generator="Ninja Multi-Config"), chosen)

    def test_batches_of_a_unity_build(self):
        for name, options, most in (("none", [], 40), ("one", ["-DCMAKE_UNITY_BUILD_BATCH_SIZE=1"], 1), ("seven", ["-DCMAKE_UNITY_BUILD_BATCH_SIZE=7"], 7)):
            with self.subTest(name):
                self.build = self.root / name
                self.configure("-DCMAKE_UNITY_BUILD=ON", *options)
                self.assertEqual(max(map(len, self.batches(*self.FOLDERS))), most)

    def test_tests_do_not_change_the_batches_of_the_product(self):
        self.configure("-DCMAKE_UNITY_BUILD=ON")
        alone = self.batches(*self.FOLDERS)
        self.configure("-DCMAKE_UNITY_BUILD=ON", "-DCAIRN_BUILD_TESTS=ON", "-DCAIRN_BUILD_EXAMPLES=ON", "-DCAIRN_BUILD_BENCHMARKS=ON")
        self.assertEqual(self.batches(*self.FOLDERS), alone)

    def test_make_in_a_folder_with_a_space_in_its_name(self):
        self.build = self.root / "a build"
        for generator in ("Ninja", "Unix Makefiles"):
            with self.subTest(generator):
                self.configure(generator=generator)
                for words in self.commands().values():
                    self.assertIn(f"-I{self.build}/include", words)
                shutil.rmtree(self.build)


class WithoutTraining(Configured):
    """CAIRN_WITH_TRAINING=OFF needs neither Gloo nor NCCL, and leaves out what does."""

    def test_it_configures_without_gloo_and_nccl(self):
        done = self.cmake("-DCAIRN_WITH_TRAINING=OFF", "-DGLOO_INCLUDE_DIR:PATH=", "-DNCCL_INCLUDE_DIR:PATH=",
                          self.torch_package("2.6.0", "add_library(c10_cuda INTERFACE IMPORTED)"))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        commands = json.loads((self.build / "compile_commands.json").read_text())
        files = {pathlib.Path(one["file"]).relative_to(SOURCE).as_posix() for one in commands if one["file"].startswith(f"{SOURCE}/")}
        self.assertIn("runtime/checkpoints/checkpointer.cpp", files)
        self.assertIn("tests/process/end_to_end_test.cpp", files)
        for file in files:
            self.assertFalse(file.startswith("training/"), file)
            for header in re.findall(r"#include <cairn/(training/\w*)\.hpp>", (SOURCE / file).read_text()):
                self.assertFalse((SOURCE / f"{header}.cpp").exists(), f"{file} needs {header}.cpp")
        self.assertEqual([one["file"] for one in commands if "CAIRN_HAS_NCCL" in one["command"]], [])
        installed = (self.build / "cmake_install.cmake").read_text()
        self.assertIn("/runtime/checkpoints/checkpointer.hpp", installed)
        self.assertNotRegex(installed, "/training/|cairn[-_]?[tT]raining")
        self.assertIn("set(cairn_training_FOUND OFF)", (self.build / "cairnConfig.cmake").read_text())


class Parent(Configured):
    """Inside another project: the library alone, which the project links; none of its settings changes."""

    def configure_parent(self, way, standard, *options):
        done = self.cmake(f"-DCAIRN={SOURCE}", f"-DWAY={way}", f"-DSTANDARD={standard}", f"-DTorch_DIR={cached('Torch_DIR')}", *options,
                          source=SOURCE / "tests" / "install" / "parent")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def check(self, way, standard):
        self.configure_parent(way, standard)
        rules = (self.build / "build.ninja").read_text()
        self.assertEqual(re.findall(r": CXX_EXECUTABLE_LINKER__(\w+?)_\w* ", rules), ["cairn"])
        self.assertEqual(re.findall(r": CXX_SHARED_LIBRARY_LINKER__(\w+)_\w* ", rules), ["cairn_shared", "cairn_training_shared"])
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

    def test_cairn_is_optimized_without_a_build_type(self):
        for name, options, is_said, flags, flags_of_parent in (
            ("none", [], True, "-O3", ""),
            ("Debug", ["-DCMAKE_BUILD_TYPE=Debug"], False, "", ""),
            ("MinSizeRel", ["-DCMAKE_BUILD_TYPE=MinSizeRel"], False, "-Os", "-Os"),
            ("level", ["-DCMAKE_CXX_FLAGS=-O1"], False, "-O1", "-O1"),
            ("release flags", ["-DCMAKE_CXX_FLAGS_RELEASE=-O2"], True, "-O2", ""),
        ):
            with self.subTest(name):
                self.build = self.root / name
                told = self.configure_parent("add_subdirectory", 17, *options)
                self.assertEqual("-- Cairn: no build type was given; it is built as Release" in told, is_said)
                levels = {file: " ".join(word for word in words if word.startswith("-O")) for file, words in self.commands().items()}
                self.assertEqual(levels.pop(str(SOURCE / "examples" / "embed" / "main.cpp")), flags_of_parent)
                self.assertEqual(set(levels.values()), {flags})

    def test_the_batches_of_a_parent_are_cairns(self):
        self.configure_parent("add_subdirectory", 17, "-DCMAKE_UNITY_BUILD=ON", "-DCMAKE_UNITY_BUILD_BATCH_SIZE=5")
        self.assertEqual(max(map(len, self.batches("cairn"))), 5)

    def test_by_add_subdirectory(self):
        self.check("add_subdirectory", standard=20)

    def test_by_fetch_content(self):
        self.check("FetchContent", standard=14)


class Places(Configured):
    """The names of the folders above the tree mean nothing."""

    def test_folders_above_may_have_the_names_of_folders_within(self):
        tree = self.root / "tools" / "protocol" / "training" / "c++"
        tree.mkdir(parents=True)
        for path in SOURCE.iterdir():
            if path.name not in ("build", ".git"):
                (tree / path.name).symlink_to(path)
        self.configure(source=tree)
        files = {one["file"].removeprefix(f"{tree}/") for one in json.loads((self.build / "compile_commands.json").read_text())}
        for file in ("base/log.cpp", "actors/protocol/coordinator_machine.cpp", "actors/links/frames.cpp", "runtime/worlds/world.cpp", "tools/ls.cpp"):
            self.assertIn(file, files)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
