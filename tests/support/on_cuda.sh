#!/bin/bash
# on_cuda.sh RANKS COMMAND...: runs COMMAND, which starts so many ranks, with CAIRN_TEST_DEVICE=cuda: each on a CUDA device of its own,
# or several on one where there are fewer. Without any it says that it is skipped, and exits with 77. RANKS "none": this build has no CUDA.
set -euo pipefail
ranks=$1
shift
if [ "$ranks" = none ]; then
  echo "skipped: this build has no CUDA"
  exit 77
fi
found=$( (nvidia-smi -L 2>/dev/null || true) | grep -c '^GPU' || true)
if [ "$found" = 0 ]; then
  echo "skipped: there is no CUDA device"
  exit 77
fi
if [ "$found" -lt "$ranks" ]; then
  echo "$ranks ranks share $found CUDA devices"
  export NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_MNNVL_ENABLE=0  # they talk as hosts do, see rank_device.hpp
fi
CAIRN_TEST_DEVICE=cuda exec "$@"
