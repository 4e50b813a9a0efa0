#!/bin/bash
# training.sh TRAIN_SAMPLE CAIRN_LAUNCH: real PyTorch goes on with what four ranks of Cairn trained, and two ranks of Cairn resume the
# run from what PyTorch saved. Skipped (exit code 77) where CAIRN_PYTORCH names no command that runs Python with PyTorch 2.3 or newer.
set -euo pipefail
if [ -z "${CAIRN_PYTORCH:-}" ]; then
  echo "skipped: CAIRN_PYTORCH names no command that runs real PyTorch"
  exit 77
fi
here=$(dirname "$(readlink -f "$0")")
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
"$2" -n 4 --timeout 120 -- "$1" train "$directory"
# shellcheck disable=SC2086  # a command may have arguments
$CAIRN_PYTORCH "$here/check_training.py" "$directory"
"$2" -n 2 --timeout 120 -- "$1" resume "$directory"
