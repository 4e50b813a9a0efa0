#!/bin/sh
# Runs N seeds of the simulator from FIRST on, in as many processes as there are processors, and stops at nothing: every failing seed
# is listed at the end, with the command that replays it.
#
#   tests/simulation/soak.sh N [FIRST] [BINARY]        BINARY: build/release/bin/cairn_simulation_tests unless given
set -eu
count=${1:?usage: soak.sh N [FIRST] [BINARY]}
first=${2:-0}
binary=${3:-$(dirname "$0")/../../build/release/bin/cairn_simulation_tests}
chunk=500
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT

last=$((first + count - 1))
seq "$first" "$chunk" "$last" | xargs -P "$(nproc)" -I{} sh -c '
  to=$(({} + '"$chunk"' - 1))
  [ "$to" -le '"$last"' ] || to='"$last"'
  "'"$binary"'" -tc="whatever befalls*" --no-coverage --seeds={}..$to > "'"$directory"'/{}" 2>&1 ||
    echo "failed: seeds {}..$to"' || true

if failures=$(grep -h "^seed [0-9]*:" -A3 "$directory"/*); then
  echo "$failures"
  exit 1
fi
done_seeds=$(cat "$directory"/* | awk '/ seeds, / { sum += $1 } END { print sum + 0 }')
echo "$done_seeds of $count seeds, no violation"
[ "$done_seeds" -eq "$count" ]
