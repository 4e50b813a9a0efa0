#!/bin/bash
# Shows Cairn at work on a fresh Debian 12: installs what is needed, builds the example trainer, trains it on 4 ranks, resumes the run
# on 2, goes on with the model sharded over 4, looks at what was saved, and asks why a save has failed. Works from any directory and may be run again; the second run only trains.
#
#   examples/demo.sh [DIRECTORY]     where checkpoints go; default: a new temporary directory
set -euo pipefail
source_dir=$(dirname "$(dirname "$(readlink -f "$0")")")
case ${1:-} in -h|--help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;; esac
run_dir=$(readlink -m "${1:-$(mktemp -d -t cairn_demo.XXXXXX)}")/char_lm
bin=$source_dir/build/release/bin

steps=7
step() { current=$((${current:-0} + 1)); printf '\n=== %d/%d %s (%d s since the start)\n' "$current" "$steps" "$1" "$SECONDS"; }
show() { printf '$ %s\n' "$*"; "$@"; }

step "Install what is needed"
"$source_dir/cmake/install_dependencies.sh"

step "Build the trainer and the commands"
cd "$source_dir"
if [ ! -f build/release/build.ninja ]; then
  mkdir -p build/release
  cmake --preset release >build/release/configure.log 2>&1 || { cat build/release/configure.log; exit 1; }
fi
cmake --build --preset release --parallel "$(nproc)" --target char_lm cairn_command

step "Train on 4 ranks up to step 18, saving every 5 steps"
rm -rf "$run_dir"
mkdir -p "$run_dir"
show "$bin/cairn-launch" -n 4 -- "$bin/char_lm" --steps 18 --save-every 5 --dir "$run_dir" | tee "$run_dir/before.log"

step "Resume on 2 ranks from the last checkpoint, step 15"
show "$bin/cairn-launch" -n 2 -- "$bin/char_lm" --steps 30 --save-every 5 --dir "$run_dir" --resume | tee "$run_dir/after.log"
losses() { grep -o 'step 1[678] loss .*' "$1"; }
echo "Steps 16 to 18 were trained twice:"
paste <(losses "$run_dir/before.log" | sed 's/^/  4 ranks: /') <(losses "$run_dir/after.log" | sed 's/^/  2 ranks, resumed: /')
if [ "$(losses "$run_dir/before.log")" = "$(losses "$run_dir/after.log")" ]; then
  echo "Their losses are equal to the last digit."
else
  echo "Their losses differ, which they must not." >&2
  exit 1
fi

step "Go on with the model and its optimizer sharded over 4 ranks, from the same checkpoint"
show "$bin/cairn-launch" -n 4 -- "$bin/char_lm" --parallel full --steps 40 --save-every 5 --dir "$run_dir" --resume

step "What was saved"
show ls -R "$run_dir"
show "$bin/cairn" inspect "$run_dir/step_40"
show "$bin/cairn" verify "$run_dir/step_40"

step "Kill a rank in the middle of a save, and ask why it failed"
show "$bin/cairn-launch" -n 4 --keep-going --trace "$run_dir/traces" --inject 'kill@hook:write_data,rank=2,nth=2' -- \
  "$bin/char_lm" --allow-injection --steps 10 --save-every 5 --dir "$run_dir/killed" && exit 1
show "$bin/cairn" trace export "$run_dir/traces" --to html -o "$run_dir/killed.html"
printf '\nDone in %d s. The checkpoints are in %s; %s/killed.html draws the failure in a browser.\n' "$SECONDS" "$run_dir" "$run_dir"
