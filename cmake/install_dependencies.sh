#!/bin/bash
# Installs the packages that building and testing Cairn needs, unless they are there: on Debian 12, Debian 13 and later, and Ubuntu 24.04.
# Needs root only for that. The lists below are the only ones.
#
#   cmake/install_dependencies.sh                  what building and most tests need
#   cmake/install_dependencies.sh --without-torch  the same without LibTorch, for machines that have another one, such as PyTorch's with CUDA
#   cmake/install_dependencies.sh --packages       and what making Debian packages needs
#   cmake/install_dependencies.sh --tests          and what further tests use: Clang, a browser, launchers, network tools, promtool, an S3 server, --packages
#
# The options go together. Each package that the system's release does not have is named, with what to do or what is lost without it. The
# script fails if building is impossible without one of them.
set -euo pipefail

needed=(
  g++ cmake ninja-build python3 pkg-config
  libtorch-dev libgloo-dev libcaf-dev libprotobuf-dev protobuf-compiler libssl-dev zlib1g-dev
  libisal-dev libxxhash-dev libcurl4-openssl-dev libexpat1-dev libzstd-dev libfmt-dev libspdlog-dev libcli11-dev nlohmann-json3-dev doctest-dev
)
optional=()
torch=true
for option in "$@"; do
  case $option in
    --without-torch) torch=false ;;
    --packages) optional+=(dpkg-dev file) ;;
    --tests) optional+=(clang dpkg-dev file chromium-headless-shell openmpi-bin libopenmpi-dev mpich slurmctld slurmd slurm-client munge iproute2 prometheus
                         ceph-mon ceph-osd radosgw ceph-common)
             tests=true ;;
    *) echo "unknown option $option" >&2; exit 2 ;;
  esac
done
if $torch; then
  if ${tests:-false}; then optional+=(python3-torch); fi
else
  needed=("${needed[@]/libtorch-dev}")
fi

missing=()
for package in "${needed[@]}" "${optional[@]}"; do
  [ -z "$package" ] || [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "all packages are installed"
  exit 0
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "root is needed to install ${missing[*]}: run this as root once" >&2; exit 1; }
  as_root=(sudo)
fi
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -q

# Says what to do about a package that this release does not have. Fails if nothing helps.
explain_absent() {
  case $1 in
    libtorch-dev) echo "this release has no libtorch-dev: install PyTorch's Python package, or unpack LibTorch's archive (docs/building.md)" ;;
    python3-torch) echo "this release has no python3-torch: the test of torchrun is skipped" ;;
    libgloo-dev) echo "this release has no libgloo-dev: put Gloo's headers into CMAKE_PREFIX_PATH, or build with CAIRN_WITH_TRAINING=OFF" ;;
    libspdlog-dev) echo "this release has no libspdlog-dev: the test of installations fails without it" ;;
    *) [[ " ${optional[*]} " = *" $1 "* ]] || { echo "this release has no $1, without which Cairn cannot be built" >&2; return 1; }
       echo "this release has no $1: tests that use it are skipped" ;;
  esac
}
present=()
for package in "${missing[@]}"; do
  # No pipe: `grep -q` ends at its match, and under pipefail the SIGPIPE of the other side counts as failure.
  if [[ "$(apt-cache policy "$package")" =~ Candidate:\ [^\(] ]]; then
    present+=("$package")
  else
    explain_absent "$package"
  fi
done
if [ ${#present[@]} -eq 0 ]; then exit 0; fi
echo "installing ${present[*]}"
"${as_root[@]}" apt-get install -q -y --no-install-recommends "${present[@]}"
