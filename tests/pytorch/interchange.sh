#!/bin/bash
# interchange.sh WRITE_SAMPLE CAIRN: real PyTorch opens what Cairn writes and what its command converts, and Cairn opens what PyTorch
# writes.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
# shellcheck source=tests/pytorch/need_pytorch.sh
. "$here/need_pytorch.sh"
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
"$1" write "$directory/checkpoint" "$directory/expected.json"
"${pytorch[@]}" "$here/check_interchange.py" "$directory/checkpoint" "$directory/expected.json" --overwritten "$directory/overwritten" \
  --torch-save "$directory/saved.pt"
"$1" read "$directory/overwritten"

"$1" write "$directory/reused" "$directory/expected.json" 0 reused
"${pytorch[@]}" "$here/check_interchange.py" "$directory/reused" "$directory/expected.json" --overwritten "$directory/reused_overwritten"
"$1" read "$directory/reused_overwritten"
"$2" verify "$directory/reused"

"$1" write-safetensors "$directory/safetensors"
"${pytorch[@]}" "$here/check_safetensors.py" "$directory/safetensors" "$directory/expected.json"
for form in "$directory"/safetensors/*; do
  "$1" read-safetensors "$form"
done

"$2" diff "$directory/checkpoint" "$directory/saved.pt"
"$2" convert "$directory/checkpoint" "$directory/converted.pt" --to torch --memory 1KiB
"$2" convert "$directory/saved.pt" "$directory/converted" --to dcp --world 3
"${pytorch[@]}" "$here/check_interchange.py" "$directory/converted" "$directory/expected.json" --torch-file "$directory/converted.pt"

if ! "$1" write "$directory/compressed" "$directory/expected.json" 3 2> "$directory/refusal"; then
  cat "$directory/refusal"
  grep -q CAIRN_WITH_ZSTD "$directory/refusal"
  exit 0
fi
"$2" verify "$directory/compressed"
"$2" diff "$directory/checkpoint" "$directory/compressed"
code=0
"${pytorch[@]}" "$here/check_interchange.py" "$directory/compressed" "$directory/expected.json" \
  --overwritten "$directory/compressed_by_pytorch" || code=$?
if [ "$code" -eq 0 ]; then
  "$1" read "$directory/compressed_by_pytorch"
  "$2" verify "$directory/compressed_by_pytorch"
  "$1" write "$directory/stacked" "$directory/expected.json" 3 masked
  "${pytorch[@]}" "$here/check_interchange.py" "$directory/stacked" "$directory/expected.json"
elif [ "$code" -ne 77 ]; then
  exit "$code"
fi
