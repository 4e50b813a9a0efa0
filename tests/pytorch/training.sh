#!/bin/bash
# training.sh TRAIN_SAMPLE CAIRN_LAUNCH: real PyTorch continues the training of four ranks of Cairn, and two ranks of Cairn resume the
# run from what PyTorch saved.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
# shellcheck source=tests/pytorch/need_pytorch.sh
. "$here/need_pytorch.sh"
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
"$2" -n 4 --timeout 120 -- "$1" train "$directory"
"${pytorch[@]}" "$here/check_training.py" "$directory"
"$2" -n 2 --timeout 120 -- "$1" resume "$directory"
