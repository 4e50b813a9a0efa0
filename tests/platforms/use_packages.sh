#!/bin/bash
# Run by run_on_debian.sh as root in a chroot that has nothing but apt: installs the Debian packages that lie beside this script, and uses
# them as a stranger would.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")"
fail() { echo "FAILED: $1" >&2; exit 1; }
installed() { apt-get install -q -y --no-install-recommends "$@" >/dev/null; }

apt-get update -q >/dev/null
installed ./cairn-tools_*.deb ./libcairn[0-9]*.deb
version=$(dpkg-query -W -f '${Version}' cairn-tools)
cairn --version | grep -qx "cairn ${version%-1}" || fail "cairn --version says $(cairn --version)"
[ "$(cairn-launch -n 2 -- sh -c 'echo rank $RANK' | sort | tr -d '\n')" = "[rank 0] rank 0[rank 1] rank 1" ] || fail "cairn-launch starts no ranks"
! command -v c++ >/dev/null || fail "the commands bring a compiler"
[ ! -e /usr/include/torch ] && [ ! -e /usr/include/cairn ] || fail "the commands bring headers"

installed ./libcairn-dev_*.deb g++ cmake ninja-build pkg-config
examples=/usr/share/doc/cairn/examples
cmake -S "$examples/embed" -B /tmp/embed -G Ninja >/tmp/embed.log || { cat /tmp/embed.log; fail "cmake does not find Cairn"; }
cmake --build /tmp/embed >/tmp/embed.log || { cat /tmp/embed.log; fail "a project with find_package does not build"; }
/tmp/embed/embed /tmp/run | grep -qx "step 7" || fail "the program does not run"
cairn verify /tmp/run/step_7 | grep fine || fail "cairn verify finds faults"
cairn-launch -n 2 -- /tmp/embed/trainer /tmp/training 100 | grep "from step 0" || fail "two ranks do not train"
# shellcheck disable=SC2046
c++ $(pkg-config --cflags cairn) "$examples/embed/main.cpp" -o /tmp/by_hand $(pkg-config --libs cairn)
/tmp/by_hand /tmp/run_by_hand | grep -qx "step 7" || fail "the program that pkg-config links does not run"

apt-get purge -q -y 'libcairn*' cairn-tools >/dev/null
left=$(find / -xdev -iname '*cairn*' -not -path '/packages/*' -not -path '/tmp/*' -not -path '/var/cache/*' -not -path '/proc/*')
[ -z "$left" ] || fail "left behind: $left"
echo "the packages work"
