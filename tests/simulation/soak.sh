#!/bin/sh
# Runs N seeds of the simulator from FIRST on, in as many processes as there are processors, and stops at nothing: every failing seed
# is listed at the end, with what went wrong and the command that replays it; then the exit status is 1.
#
#   tests/simulation/soak.sh N [FIRST] [BINARY]        BINARY: build/release/bin/cairn_simulation_tests unless given
set -eu
count=${1:?usage: soak.sh N [FIRST] [BINARY]}
first=${2:-0}
root=$(cd "$(dirname "$0")/../.." && pwd)
binary=$(realpath "${3:-$root/build/release/bin/cairn_simulation_tests}")
[ -x "$binary" ] || { echo "$binary is not there: build it with the release preset, or name another" >&2; exit 2; }

processes=$(nproc)
# Small enough for the last ones to end together, large enough for starting a process not to count.
chunk=$((count / (processes * 8) + 1))
[ "$chunk" -le 500 ] || chunk=500
last=$((first + count - 1))
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
began=$(date +%s)

# One chunk of seeds. Where the process itself dies, its seeds one by one, to find the one that kills it.
cat > "$directory/chunk.sh" <<'CHUNK'
binary=$1 directory=$2 last=$3 chunk=$4 count=$5 from=$6
to=$((from + chunk - 1))
[ "$to" -le "$last" ] || to=$last
output=$directory/$from.output
"$binary" -tc="whatever befalls*" --seeds="$from..$to" --no-colors > "$output" 2>&1 || true
if ! grep -q "^$((to - from + 1)) seeds, " "$output"; then
  : > "$output"
  seed=$from
  while [ "$seed" -le "$to" ]; do
    if "$binary" -tc="whatever befalls*" --seeds="$seed" --no-colors > "$output.one" 2>&1 || grep -q "^1 seeds, " "$output.one"; then
      cat "$output.one" >> "$output"
    else
      echo "ERROR: seed $seed: $binary -tc=\"whatever befalls*\" --seeds=$seed --trace" >> "$output"
      echo "  the process died" >> "$output"
      echo "1 seeds, 1 failing" >> "$output"
    fi
    seed=$((seed + 1))
  done
  rm -f "$output.one"
fi
done=$(cat "$directory"/*.output | awk '/^[0-9]+ seeds, / { seeds += $1; failing += $3 } END { print seeds " of '"$count"' seeds, " failing " failing" }')
echo "$done"
CHUNK

seq "$first" "$chunk" "$last" | xargs -P "$processes" -n 1 sh "$directory/chunk.sh" "$binary" "$directory" "$last" "$chunk" "$count"

cat "$directory"/*.output | awk '/ERROR: seed [0-9]+: / { sub(/.*ERROR: /, ""); print; shown = 1; next } shown && /^  / { print; next } { shown = 0 }'
cat "$directory"/*.output | awk -v count="$count" -v began="$began" -v now="$(date +%s)" '
  /^[0-9]+ seeds, / { seeds += $1; failing += $3 }
  END { print seeds " of " count " seeds in " now - began " s, " failing " failing"; exit seeds != count || failing > 0 }'
