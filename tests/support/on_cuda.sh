#!/bin/bash
# on_cuda.sh DEVICES COMMAND...: runs COMMAND with CAIRN_TEST_DEVICE=cuda where there are so many CUDA devices; else says that it is
# skipped, and exits with 77. DEVICES "none": this build has no CUDA.
set -euo pipefail
wanted=$1
shift
if [ "$wanted" = none ]; then
  echo "skipped: this build has no CUDA"
  exit 77
fi
found=$( (nvidia-smi -L 2>/dev/null || true) | grep -c '^GPU' || true)
if [ "$found" -lt "$wanted" ]; then
  echo "skipped: it needs $wanted CUDA devices, here are $found"
  exit 77
fi
CAIRN_TEST_DEVICE=cuda exec "$@"
