#!/bin/bash
# install_pytorch.sh DIRECTORY: installs the PyTorch of Debian sid in DIRECTORY, and prints the command that runs Python with it. Leaves
# the system's own packages as they are and needs no root. Does nothing if DIRECTORY has it already. Needs apt, Debian's keyring, x86-64
# and 2 GB.
set -euo pipefail
mkdir -p "$1"
root=$(readlink -f "$1")
if [ ! -x "$root/python" ]; then
  apt=$root/apt
  rm -rf "$root/usr" "$apt"
  mkdir -p "$apt"/lists/partial "$apt"/cache/archives/partial "$root"/usr/{bin,lib,lib64,sbin}
  : > "$apt/status"
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -v security | sed -n 1p)
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror sid main" > "$apt/sources.list"
  options=(-o Dir::Etc::sourcelist="$apt/sources.list" -o Dir::Etc::sourceparts=/dev/null -o Dir::State::lists="$apt/lists"
           -o Dir::Cache="$apt/cache" -o Dir::State::status="$apt/status" -o APT::Sandbox::User="$(id -un)" -o Debug::NoLocking=1
           -o Acquire::Check-Valid-Until=false)  # a mirror may lag behind sid; its signature is checked in any case
  apt-get "${options[@]}" update >&2
  apt-get "${options[@]}" install -y --no-install-recommends --download-only \
    python3-torch python3-numpy python3-fsspec python3-yaml python3-zstandard >&2
  # Debian's packages expect these links.
  for name in bin lib lib64 sbin; do ln -sfn "usr/$name" "$root/$name"; done
  for package in "$apt"/cache/archives/*.deb; do dpkg -x "$package" "$root"; done
  rm -rf "$apt"
  # The packages' own scripts would select BLAS and LAPACK.
  libraries=$root/usr/lib/x86_64-linux-gnu
  for library in blas/libblas.so.3 lapack/liblapack.so.3; do
    if [ -e "$libraries/$library" ]; then ln -sfn "$library" "$libraries/${library##*/}"; fi
  done
  python=$(cd "$root/usr/bin" && ls python3.?? | tail -1)
  # Starts Python through the loader of its own C library, which is newer than this system's.
  cat > "$root/python.new" << END
#!/bin/bash
root=\$(dirname "\$(readlink -f "\$0")")
exec env PYTHONHOME="\$root/usr" USE_LIBUV=0 "\$root/usr/lib64/ld-linux-x86-64.so.2" \\
  --library-path "\$root/usr/lib/x86_64-linux-gnu:\$root/usr/lib" "\$root/usr/bin/$python" "\$@"
END
  chmod +x "$root/python.new"
  "$root/python.new" -c 'import torch.distributed.checkpoint; print("PyTorch", torch.__version__)' >&2
  mv "$root/python.new" "$root/python"
fi
printf '%q\n' "$root/python"
