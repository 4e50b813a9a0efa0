#!/bin/bash
# Builds Cairn on another release of Debian, in a chroot made of that release's packages, and runs tests there.
#
#   tests/platforms/run_on_debian.sh SUITE             the libraries, the commands, and the tests of single processes
#   tests/platforms/run_on_debian.sh SUITE --all       everything but the benchmarks, and all tests but the largest
#   tests/platforms/run_on_debian.sh SUITE --tests R   the same, with the tests whose names match the regular expression R
#   tests/platforms/run_on_debian.sh SUITE --packages  Debian packages, which are installed and used in another chroot, without compilers first
#   tests/platforms/run_on_debian.sh SUITE --shell C   the bash command C in the chroot, where the sources are in /cairn/source
#
# SUITE: bookworm (Debian 12), trixie (13) or sid. --jobs N: how many compilers run at once; all processors by default.
# The chroot is made in build/platforms/SUITE, once, with the packages of cmake/install_dependencies.sh; CAIRN_PLATFORMS names another
# folder. Later runs copy the sources again and compile what has changed. Needs root, mmdebstrap, Debian's mirror and 6 GB. Ends with 77
# if one of them is missing, and otherwise as the build and the tests do.
set -euo pipefail
source_dir=$(dirname "$(dirname "$(dirname "$(readlink -f "$0")")")")

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit "$1"; }
skip() { echo "skipped: $1"; exit 77; }

suite="" jobs=$(nproc) filter="" command="" action=units
while [ $# -gt 0 ]; do
  case $1 in
    --all) action=all ;;
    --packages) action=packages ;;
    --tests|--jobs|--shell)
      [ $# -ge 2 ] || { echo "$1 needs a value" >&2; exit 2; }
      case $1 in --tests) filter=$2 action=all ;; --jobs) jobs=$2 ;; --shell) command=$2 action=shell ;; esac
      shift ;;
    -h|--help) usage 0 ;;
    bookworm|trixie|sid) suite=$1 ;;
    *) echo "unknown word $1; see --help" >&2; exit 2 ;;
  esac
  shift
done
[ -n "$suite" ] || usage 2 >&2
[ "$(id -u)" = 0 ] || skip "making a chroot needs root"
command -v mmdebstrap >/dev/null || skip "mmdebstrap is not installed"

platforms=${CAIRN_PLATFORMS:-$source_dir/build/platforms}
mkdir -p "$platforms"
platforms=$(readlink -f "$platforms")
root=$platforms/$suite

# make_chroot FOLDER: the least that apt needs. The folder is there once it is whole. A mirror may lag behind the time within which sid's
# index counts as fresh; its signature is checked in any case.
make_chroot() {
  local mirror
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Label: Debian' | sed -n 1p)
  rm -rf "$1.new"
  mmdebstrap --variant=apt --include=ca-certificates --aptopt='Acquire::Check-Valid-Until "false"' "$suite" "$1.new" \
      ${mirror:+"$mirror"} \
    || { rm -rf "$1.new"; skip "no chroot of $suite could be made"; }
  mv "$1.new" "$1"
}

# within FOLDER COMMAND: a bash command in that chroot, in process and mount namespaces of its own, which end with it.
within() {
  cp /etc/resolv.conf /etc/hosts "$1/etc/"
  unshare --mount --pid --fork --kill-child bash -c '
    mount --rbind /dev "$0/dev" && mount -t tmpfs tmpfs "$0/dev/shm" && mount -t proc proc "$0/proc" && mount --rbind /sys "$0/sys" &&
    exec chroot "$0" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
      bash -euo pipefail -c "$1"' "$1" "$2"
}

[ -e "$root" ] || make_chroot "$root"
# Times of files are kept, so that the next build takes what the last one has made.
rm -rf "$root/cairn/source"
mkdir -p "$root/cairn/source"
tar -C "$source_dir" --exclude=./build --exclude=./.git --exclude=__pycache__ -cf - . | tar -C "$root/cairn/source" -xf - --no-same-owner

folders="base planning messages tracing protocol state storage actors runtime"
# Presets `release` and `debian` share one folder, since they compile alike: the values that the other one sets are given here.
configure="cmake --preset release -B /cairn/build -DCAIRN_BUILD_BENCHMARKS=OFF -DCAIRN_BUILD_TESTS=ON -DCAIRN_BUILD_EXAMPLES=ON
           -DCMAKE_INSTALL_PREFIX=/usr/local -DCMAKE_SKIP_INSTALL_RPATH=OFF -DCAIRN_ZSH_COMPLETIONS=share/zsh/site-functions"
run_tests="ctest --test-dir /cairn/build --no-tests=error --output-on-failure --parallel $jobs"
case $action in
  shell)
    within "$root" "cd /cairn/source; $command" ;;
  units)
    targets="cairn_shared cairn_training_shared cairn_command"
    for folder in $folders; do targets+=" cairn_${folder}_tests"; done
    within "$root" "
      cd /cairn/source
      cmake/install_dependencies.sh
      ${configure//$'\n'/}
      cmake --build /cairn/build --parallel $jobs --target $targets
      $run_tests -R '^(${folders// /|})(\\.machine|\\.no_gpu)?\$'" ;;
  all)
    within "$root" "
      cd /cairn/source
      cmake/install_dependencies.sh --tests
      ${configure//$'\n'/}
      cmake --build /cairn/build --parallel $jobs
      $run_tests -LE large ${filter:+-R '$filter'}" ;;
  packages)
    within "$root" "
      cd /cairn/source
      cmake/install_dependencies.sh --packages
      cmake --preset debian -B /cairn/build
      cmake --build /cairn/build --parallel $jobs
      rm -rf /cairn/packages
      python3 tests/install/packages_test.py . /cairn/build /cairn/packages"
    rm -rf "$root-clean"
    make_chroot "$root-clean"
    mkdir "$root-clean/packages"
    cp "$root"/cairn/packages/*.deb "$source_dir/tests/platforms/use_packages.sh" "$root-clean/packages"
    within "$root-clean" /packages/use_packages.sh
    rm -rf "$root-clean" ;;
esac
