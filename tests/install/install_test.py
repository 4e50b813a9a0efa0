#!/usr/bin/env python3
"""Installs the build into a folder of its own and uses it from there, as somebody else's project would.

usage: install_test.py SOURCE_DIRECTORY BUILD_DIRECTORY
"""

import contextlib
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
SKIPPED = 77  # SKIP_RETURN_CODE: this machine cannot run a case, and no case failed


def run(*command, **options):
    """The standard output of a command that must succeed."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def needed(binary):
    """The libraries that this program or library itself asks for, as "torch_cpu"."""
    return re.findall(r"\(NEEDED\).*\[lib([\w+-]+)\.so", run("readelf", "--dynamic", binary))


def cached(name):
    """A variable of the build."""
    return re.search(rf"^{name}:\w+=(.*)$", (BUILD / "CMakeCache.txt").read_text(), re.MULTILINE)[1]


class InstalledTree(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = pathlib.Path(tempfile.mkdtemp(prefix="cairn_install_"))
        cls.prefix = cls.root / "prefix"
        run("cmake", "--install", BUILD, "--prefix", cls.prefix)
        # A tree that was moved must work as well: nothing may point to where it was installed first.
        cls.moved = cls.root / "moved"
        cls.prefix.rename(cls.moved)
        cls.prefix = cls.moved
        cls.documents = cls.prefix / "share" / "doc" / "cairn"

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.root)

    def check_program(self, program, directory, **options):
        output = run(program, directory, **options)
        self.assertIn("step 7", output)
        self.assertTrue((directory / "step_7" / ".metadata").is_file())
        inspected = run(self.prefix / "bin" / "cairn", "inspect", directory / "step_7")
        self.assertIn("weights", inspected)
        self.assertIn("fine", run(self.prefix / "bin" / "cairn", "verify", directory / "step_7"))
        if os.environ.get("CAIRN_PYTORCH"):
            opened = run(*shlex.split(os.environ["CAIRN_PYTORCH"]), SOURCE / "examples" / "embed" / "open.py", directory / "step_7")
            self.assertIn("step 7\n", opened)

    @contextlib.contextmanager
    def without_training(self):
        """An installation without libcairn_training, its headers and its packages, as distributions split it."""
        moved = [(path, self.root / "hidden" / path.relative_to(self.prefix)) for path in self.training_files()]
        for path, hidden in moved:
            hidden.parent.mkdir(parents=True, exist_ok=True)
            path.rename(hidden)
        try:
            yield
        finally:
            for path, hidden in moved:
                hidden.rename(path)

    def training_files(self):
        return [path for path in self.prefix.rglob("*") if path.is_relative_to(self.prefix / "include" / "cairn" / "training") and path.is_file()
                or re.match(r"(lib)?cairn[-_]?[tT]raining", path.name)]

    def test_a_program_that_only_checkpoints_needs_nothing_of_training(self):
        if cached("CAIRN_WITH_TRAINING") == "ON":
            names = {path.name for path in self.training_files()}
            self.assertLess({"libcairn_training.so", "cairn-training.pc", "cairnTrainingTargets.cmake", "fully_shard.hpp"}, names)
        build = self.root / "checkpointing"
        with self.without_training():
            self.assertEqual(self.training_files(), [])
            run("cmake", "-S", self.documents / "examples" / "embed", "-B", build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={self.prefix}")
            run("cmake", "--build", build, "--target", "embed")
            self.check_program(build / "embed", self.root / "from_checkpointing")
            refused = subprocess.run(["cmake", "-S", self.documents / "examples" / "communicators", "-B", self.root / "refused", "-G", "Ninja",
                                      f"-DCMAKE_PREFIX_PATH={self.prefix}"], capture_output=True, text=True)
            self.assertNotEqual(refused.returncode, 0)
            self.assertIn("training", refused.stderr)
        library = next(self.prefix.rglob("libcairn.so"))
        for binary in (build / "embed", library):
            self.assertIn("c10", needed(binary))
            self.assertEqual([name for name in needed(binary) if re.search("training|gloo|nccl|mpi", name)], [], binary)

    def test_a_cmake_project_finds_builds_and_runs(self):
        build = self.root / "embed"
        run("cmake", "-S", self.documents / "examples" / "embed", "-B", build, "-G", "Ninja",
            f"-DCMAKE_PREFIX_PATH={self.prefix}", "-DCMAKE_FIND_USE_PACKAGE_REGISTRY=OFF")
        run("cmake", "--build", build, "--target", "trainer")  # the other program: test_a_program_that_only_checkpoints_needs_nothing_of_training
        self.check_trainer(build / "trainer")

    def test_a_program_may_use_the_same_libraries_in_its_own_way(self):
        build = self.root / "stranger"
        protos = ";".join(sorted(path.stem for path in (SOURCE / "messages").glob("*.proto")))
        self.assertIn("metadata", protos)
        run("cmake", "-S", SOURCE / "tests" / "install" / "stranger", "-B", build, "-G", "Ninja",
            f"-DCMAKE_PREFIX_PATH={self.prefix}", f"-DPROTOS={protos}")
        run("cmake", "--build", build)
        self.check_program(build / "stranger", self.root / "from_stranger")

    def test_a_parent_project_compiles(self):
        """Compiles one folder of Cairn's and the parent's program, with its warnings as errors. configure_test.py checks what it configures."""
        build = self.root / "parent"
        run("cmake", "-S", SOURCE / "tests" / "install" / "parent", "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
            f"-DCAIRN={SOURCE}", "-DWAY=add_subdirectory", "-DSTANDARD=20", f"-DTorch_DIR={cached('Torch_DIR')}", "-DCMAKE_UNITY_BUILD=ON")
        run("ninja", "-C", build, "cairn_base")
        # Not by ninja, which would build the whole library first. The program is linked with the installed one.
        command = next(one["command"] for one in json.loads((build / "compile_commands.json").read_text()) if " -o CMakeFiles/cairn.dir/" in one["command"])
        run(*shlex.split(command), cwd=build)
        libraries = next(self.prefix.rglob("pkgconfig"))
        environment = {**os.environ, "PKG_CONFIG_PATH": str(libraries), "LD_LIBRARY_PATH": str(next(self.prefix.rglob("libcairn.so")).parent)}
        run("c++", *(build / "CMakeFiles/cairn.dir").rglob("*.o"), "-o", build / "program",
            *run("pkg-config", "--libs", "cairn", env=environment).split())
        self.check_program(build / "program", self.root / "from_parent", env=environment)

    def build_communicators(self, target, *options):
        """Builds a program of examples/communicators; returns where."""
        if cached("CAIRN_WITH_TRAINING") != "ON":
            self.skipTest("Cairn was built without sharded training")
        build = self.root / target
        gloo = cached("GLOO_INCLUDE_DIR")
        flags = [] if gloo == "/usr/include" else [f"-DCMAKE_CXX_FLAGS=-isystem {gloo}"]
        run("cmake", "-S", self.documents / "examples" / "communicators", "-B", build, "-G", "Ninja",
            f"-DCMAKE_PREFIX_PATH={self.prefix}", *flags, *options)
        run("cmake", "--build", build, "--target", target)
        return build

    def test_a_program_that_trains_links_both_libraries(self):
        build = self.build_communicators("own_group")
        libraries = next(self.prefix.rglob("libcairn_training.so")).parent
        environment = {**os.environ, "PKG_CONFIG_PATH": str(libraries / "pkgconfig")}
        by_hand = build / "by_hand"
        run("c++", *(build / "CMakeFiles/own_group.dir").rglob("*.o"), "-o", by_hand,
            *run("pkg-config", "--libs", "cairn-training", env=environment).split())
        for binary in (build / "own_group", by_hand):
            self.assertLessEqual({"cairn", "cairn_training"}, set(needed(binary)), binary)
        self.assertIn("cairn", needed(libraries / "libcairn_training.so"))
        self.assertEqual({name for name in needed(libraries / "libcairn_training.so") if name.startswith(("caf", "proto", "ssl"))}, set())
        # The two libraries find each other where they were moved to.
        loaded = run("ldd", build / "own_group")
        self.assertNotIn("not found", loaded)
        self.assertEqual(len(re.findall(rf"libcairn\w*\.so\S* => {re.escape(str(libraries))}/", loaded)), 2, loaded)
        self.assertNotIn("not found", run("ldd", libraries / "libcairn_training.so"))

    def test_a_trainer_may_pass_its_own_store_and_group(self):
        program = self.build_communicators("own_group") / "own_group"
        run_directory = self.root / "run_of_own_group"

        def trained(ranks, steps):
            return run(self.prefix / "bin" / "cairn-launch", "-n", ranks, "--", program, run_directory, steps)

        whole = trained(2, 30)
        self.assertIn("[rank 0] from step 0\n", whole)
        self.assertEqual(sorted(path.parent.name for path in run_directory.glob("*/.metadata")), ["step_10", "step_20", "step_30"])
        shutil.rmtree(run_directory / "step_30")
        resumed = trained(1, 30)
        self.assertIn("[rank 0] from step 20\n", resumed)
        loss = re.compile(r"step 30 loss (\S+)")
        self.assertAlmostEqual(float(loss.search(whole)[1]), float(loss.search(resumed)[1]), places=4)

    def test_an_mpi_program_makes_a_world_of_its_communicator(self):
        has_mpi = shutil.which("mpicxx") and subprocess.run(["mpicxx", "-include", "mpi.h", "-fsyntax-only", "-x", "c++", "/dev/null"],
                                                            capture_output=True).returncode == 0
        if not has_mpi:
            self.skipTest("no MPI with its headers here: libopenmpi-dev and openmpi-bin are not installed")
        build = self.build_communicators("with_mpi", "-DWITH_MPI=ON")
        launcher = re.search(r"^MPIEXEC_EXECUTABLE:\w+=(.*)$", (build / "CMakeCache.txt").read_text(), re.MULTILINE)[1]
        environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                       "OMPI_MCA_rmaps_base_oversubscribe": "1", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
        told = run(launcher, "-n", 3, build / "with_mpi", self.root / "from_mpi", env=environment)
        self.assertIn("step 7 of 3 ranks, sum 276\n", told)
        self.assertIn("fine", run(self.prefix / "bin" / "cairn", "verify", self.root / "from_mpi"))
        # A secret of the environment is not replaced by a drawn one.
        run(launcher, "-n", 3, build / "with_mpi", self.root / "secured", env={**environment, "CAIRN_SECRET": "the secret of this test"})
        short = subprocess.run([launcher, "-n", "3", build / "with_mpi", self.root / "short"], capture_output=True, text=True,
                               env={**environment, "CAIRN_SECRET": "short"})
        self.assertNotEqual(short.returncode, 0)
        self.assertRegex(short.stderr, r"secret.* bytes")
        # One process that should be one of two, as under the launcher of another MPI.
        alone = subprocess.run([build / "with_mpi", self.root / "alone"], capture_output=True, text=True,
                               env={**environment, "RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"})
        self.assertNotEqual(alone.returncode, 0, alone.stderr)
        self.assertNotIn("step 7", alone.stdout)
        self.assertFalse((self.root / "alone").exists())

    def check_trainer(self, program):
        """The README's: it saves beside its training, and goes on from there at another number of ranks."""
        run_directory = self.root / "run"

        def trained(ranks, steps):
            return run(self.prefix / "bin" / "cairn-launch", "-n", ranks, "--", program, run_directory, steps)

        self.assertIn("from step 0\n", trained(2, 250))
        self.assertEqual(sorted(path.parent.name for path in run_directory.glob("*/.metadata")), ["step_100", "step_200"])
        self.assertIn("[rank 0] from step 200\n", trained(1, 500))
        self.assertEqual(sorted(path.parent.name for path in run_directory.glob("*/.metadata")), ["step_300", "step_400", "step_500"])

    def test_pkg_config_gives_what_a_store_of_ones_own_needs_to_run_the_conformance_suite(self):
        libraries = next(self.prefix.rglob("pkgconfig"))
        environment = {**os.environ, "PKG_CONFIG_PATH": str(libraries)}
        flags = run("pkg-config", "--cflags", "--libs", "cairn", env=environment).split()
        self.assertEqual(run("pkg-config", "--modversion", "cairn", env=environment).strip(),
                         run(self.prefix / "bin" / "cairn", "--version").split()[1])
        program = self.root / "own_store"
        run("c++", SOURCE / "tests" / "install" / "own_store.cpp", "-o", program, *flags)
        environment["LD_LIBRARY_PATH"] = str(next(self.prefix.rglob("libcairn.so")).parent)
        self.assertIn("2 passed", run(program, "--no-colors", env=environment))

    def test_the_library_asks_for_no_library_that_a_program_may_have_in_another_version(self):
        """Protobuf's full runtime keeps one table of file names a process; the sonames of spdlog and fmt change with every release."""
        libraries = needed(next(self.prefix.rglob("libcairn.so")))
        self.assertIn("torch_cpu", libraries)
        self.assertEqual({"protobuf", "spdlog", "fmt"} & set(libraries), set())

    def test_exactly_the_public_headers_are_installed(self):
        sys.path.insert(0, str(SOURCE / "tests" / "house"))
        sys.dont_write_bytecode = True
        from layers import public_headers
        installed = {path.relative_to(self.prefix / "include" / "cairn").as_posix()
                     for path in (self.prefix / "include").rglob("*") if path.is_file()}
        wanted = {name for name in public_headers() if cached("CAIRN_WITH_TRAINING") == "ON" or not name.startswith("training/")}
        self.assertEqual(installed, wanted)

    def test_documents_that_headers_and_documents_name_are_installed(self):
        readers = [*(self.prefix / "include").rglob("*.hpp"), *self.documents.rglob("*.md")]
        named = {name for reader in readers for name in re.findall(r"\b(?:docs|storage)/\w+\.md\b", reader.read_text())}
        self.assertIn("storage/FORMAT.md", named)
        self.assertIn("docs/training.md", named)
        for name in named | {"README.md", "CHANGELOG.md", "LICENSE"}:
            self.assertTrue((self.documents / name).is_file(), name)

    def test_the_manual_and_the_completions_are_installed(self):
        command = self.prefix / "bin" / "cairn"
        version = run(command, "--version").split()[1]
        self.assertIn(f'"cairn {version}"', next(self.prefix.rglob("man1/cairn.1")).read_text())
        self.assertIn("-F _cairn_words cairn", (self.prefix / "share/bash-completion/completions/cairn").read_text())
        self.assertIn("/../../bash-completion/completions/cairn\n", (self.prefix / "share/zsh/site-functions/_cairn").read_text())

    def test_the_command_links_no_libtorch(self):
        command = self.prefix / "bin" / "cairn"
        loaded = run("ldd", command).splitlines()
        self.assertEqual([line for line in loaded if re.search(r"torch|c10|libcaf|libcairn|not found", line.partition(" (0x")[0])], [])
        self.assertLess(len(loaded), 50)  # of which libcurl brings half
        self.assertFalse((self.prefix / "libexec").exists())
        self.assertIn("--slice", run(command, "cat", "--help"))

    def test_the_launcher_s_manual_and_completions_are_installed(self):
        text = run(self.prefix / "bin" / "cairn-launch", "--help")
        manual = next(self.prefix.rglob("man1/cairn-launch.1")).read_text().replace("\\-", "-")
        for option in re.findall(r"^  (?:-\w, )?(?:-n RANKS, )?(--[\w-]+)", text, re.MULTILINE):
            self.assertIn(option, manual)
        for path in ("bash-completion/completions/cairn-launch", "zsh/site-functions/_cairn-launch"):
            self.assertIn("cairn-launch", (self.prefix / "share" / path).read_text())
        version = run(self.prefix / "bin" / "cairn", "--version").split()[1]
        self.assertEqual(run(self.prefix / "bin" / "cairn-launch", "--version"), "cairn-launch %s\n" % version)

    def test_the_commands_are_installed(self):
        for command in ("cairn", "cairn-launch"):
            self.assertIn("usage", run(self.prefix / "bin" / command, "--help").lower())


if __name__ == "__main__":
    result = unittest.main(argv=sys.argv[:1], verbosity=2, exit=False).result
    sys.exit(SKIPPED if result.wasSuccessful() and result.skipped else not result.wasSuccessful())
