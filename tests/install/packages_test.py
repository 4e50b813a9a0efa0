#!/usr/bin/env python3
"""Makes the Debian packages of the build and reads them: names, dependencies, and which files each of them has.

usage: packages_test.py SOURCE_DIRECTORY BUILD_DIRECTORY [PACKAGE_DIRECTORY]

PACKAGE_DIRECTORY: where the packages are kept. tests/platforms/run_on_debian.sh installs them from there.
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(sys.argv[1]).resolve()
BUILD = pathlib.Path(sys.argv[2]).resolve()
KEPT = pathlib.Path(sys.argv[3]).resolve() if len(sys.argv) > 3 else None
SKIPPED = 77  # SKIP_RETURN_CODE


def run(*command):
    """The standard output of a command that must succeed."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def is_elf(path):
    return path.is_file() and not path.is_symlink() and path.read_bytes()[:4] == b"\x7fELF"


class Package:
    """One package: its fields, its list of files as dpkg shows it, and its files unpacked in a folder."""

    def __init__(self, file, root):
        self.root = root / file.stem
        run("dpkg-deb", "-R", file, self.root)
        self.fields = dict(re.findall(r"^([\w-]+): (.*)$", (self.root / "DEBIAN/control").read_text(), re.MULTILINE))
        self.listing = run("dpkg-deb", "-c", file).splitlines()
        self.files = {path.relative_to(self.root).as_posix() for path in self.root.rglob("*")
                      if (path.is_symlink() or path.is_file()) and "DEBIAN" not in path.parts}
        self.programs = [path for path in self.root.rglob("*") if is_elf(path)]

    def depends(self):
        """The names of the packages on which it depends, with the versions asked for."""
        found = {}
        for one in self.fields.get("Depends", "").split(", "):
            name, _, version = one.partition(" ")
            found.setdefault(name, []).append(version.strip("()"))
        return found


class Packages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="cairn_packages_")
        cls.addClassCleanup(folder.cleanup)
        cls.root = pathlib.Path(folder.name).resolve()
        run("cpack", "--config", BUILD / "CPackConfig.cmake", "-B", cls.root / "made")
        cls.made = sorted((cls.root / "made").glob("*.deb"))
        cls.packages = {file.name.split("_")[0]: Package(file, cls.root) for file in cls.made}
        version = re.search(r'define CAIRN_VERSION "(.*)"', (SOURCE / "base/version.hpp").read_text())[1]
        cls.version = f"{version}-1"
        cls.library = f"libcairn{'.'.join(version.split('.')[:2])}"
        if KEPT:
            KEPT.mkdir(parents=True, exist_ok=True)
            for file in cls.made:
                shutil.copy(file, KEPT)

    def test_the_packages_have_the_names_that_debian_gives(self):
        architecture = run("dpkg", "--print-architecture").strip()
        self.assertEqual({file.name for file in self.made},
                         {f"{name}_{self.version}_{architecture}.deb" for name in (self.library, "libcairn-dev", "cairn-tools")})
        for name, package in self.packages.items():
            self.assertEqual((package.fields["Package"], package.fields["Version"]), (name, self.version))

    def test_packages_depend_on_those_of_the_libraries_that_their_programs_load(self):
        for name in (self.library, "cairn-tools"):
            package = self.packages[name]
            self.assertNotEqual(package.programs, [])
            for program in package.programs:
                for soname in re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "--dynamic", program)):
                    if soname.startswith("libcairn"):
                        continue
                    owners = {line.split(":")[0] for line in run("dpkg-query", "-S", f"*/{soname}").splitlines()}
                    self.assertTrue(owners & package.depends().keys(), f"{name}: {soname}, which is in {owners}; depends on {package.fields['Depends']}")

    def test_packages_of_one_version_belong_together(self):
        same = [f"= {self.version}"]
        self.assertEqual(self.packages["libcairn-dev"].depends()[self.library], same)
        tools = self.packages["cairn-tools"].depends()
        self.assertIn("python3", tools)
        self.assertFalse([name for name in tools if name.startswith(("libcairn", "libtorch"))])
        self.assertNotIn(self.library, self.packages[self.library].depends())
        # The headers are of the LibTorch with which the library is linked.
        torch = next(name for name in self.packages[self.library].depends() if name.startswith("libtorch"))
        minor = re.match(r"libtorch(\d+)\.(\d+)", torch)
        self.assertEqual(self.packages["libcairn-dev"].depends()["libtorch-dev"], [f">= {minor[1]}.{minor[2]}", f"<< {minor[1]}.{int(minor[2]) + 1}~"])

    def test_each_file_of_the_installation_is_in_one_package(self):
        run("cmake", "--install", BUILD, "--prefix", self.root / "prefix")
        installed = {f"usr/{path.relative_to(self.root / 'prefix').as_posix()}" for path in (self.root / "prefix").rglob("*")
                     if path.is_symlink() or path.is_file()}
        packed = [file for package in self.packages.values() for file in package.files]
        self.assertEqual(len(packed), len(set(packed)))
        self.assertEqual(set(packed), installed | {f"usr/share/doc/{name}/copyright" for name in self.packages})

    def test_files_are_in_the_package_of_their_kind(self):
        kinds = {self.library: r"usr/lib/.*\.so\.[\d.]+$", "libcairn-dev": r"usr/(include/cairn|lib/.*/(cmake|pkgconfig)|share/doc/cairn)/|usr/lib/.*\.so$",
                 "cairn-tools": r"usr/bin/|usr/share/(man/man1|bash-completion|zsh)/"}
        kinds["libcairn-dev"] = kinds["libcairn-dev"].replace("lib/.*/(", "lib/(.*/)?(")
        for name, kind in kinds.items():
            for file in self.packages[name].files - {f"usr/share/doc/{name}/copyright"}:
                self.assertRegex(file, f"^(?:{kind})", name)
        self.assertIn("ldconfig", (self.packages[self.library].root / "DEBIAN/postinst").read_text())

    def test_files_belong_to_root_and_are_for_all(self):
        for package in self.packages.values():
            for line in package.listing:
                self.assertRegex(line, r"^(-rw-r--r--|[-d]rwxr-xr-x|lrwxrwxrwx) root/root ")

    def test_programs_are_stripped_and_know_nothing_of_the_build(self):
        for package in self.packages.values():
            for program in package.programs:
                self.assertNotIn(".symtab", run("readelf", "--sections", "--wide", program), program)
                self.assertNotIn(str(BUILD), run("readelf", "--dynamic", program), program)


if __name__ == "__main__":
    if not (BUILD / "CPackConfig.cmake").exists():
        print("skipped: LibTorch is not a Debian package here")
        sys.exit(SKIPPED)
    for needed in ("dpkg-shlibdeps", "dpkg-deb", "cpack"):
        if not shutil.which(needed):
            print(f"skipped: {needed} is not installed")
            sys.exit(SKIPPED)
    unittest.main(argv=sys.argv[:1], verbosity=2)
