#!/bin/bash
# Installs the Debian 12 packages that building and testing Cairn needs, unless they are there. Needs root only for that.
# The lists below are the only ones.
#
#   cmake/install_dependencies.sh            what building and most tests need
#   cmake/install_dependencies.sh --tests    and what further tests use: a browser, launchers, network tools
set -euo pipefail

packages=(
  g++ cmake ninja-build python3 pkg-config
  libtorch-dev libgloo-dev libcaf-dev libprotobuf-dev protobuf-compiler libssl-dev zlib1g-dev
  libisal-dev libfmt-dev libspdlog-dev libcli11-dev nlohmann-json3-dev doctest-dev
)
if [ "${1:-}" = --tests ]; then
  packages+=(chromium-headless-shell openmpi-bin libopenmpi-dev mpich slurmctld slurmd slurm-client munge python3-torch iproute2)
fi

missing=()
for package in "${packages[@]}"; do
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "all ${#packages[@]} packages are installed"
  exit 0
fi
echo "installing ${missing[*]}"
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "root is needed to install packages: run this as root once" >&2; exit 1; }
  as_root=(sudo)
fi
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -q
"${as_root[@]}" apt-get install -q -y --no-install-recommends "${missing[@]}"
