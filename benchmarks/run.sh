#!/bin/bash
# Builds the benchmarks as users run the library (preset `release`), runs them one after the other and prints a Markdown table:
# each figure beside the physical limit that was measured in the same run.
#
#   benchmarks/run.sh                  all of it
#   benchmarks/run.sh --quick          smaller and fewer repetitions: for a first look, not for the record
#   benchmarks/run.sh --json FILE      writes {name, value, unit, limit, ratio, goal, met, machine} as a list, too
#
# CAIRN_PYTORCH: a command that runs real PyTorch on a Python program from standard input ("… -"); with it, saving is compared with
# PyTorch's own distributed checkpoint on the same machine. Works from any directory.
set -euo pipefail
source_dir=$(dirname "$(dirname "$(readlink -f "$0")")")

quick=()
json=
while [ $# -gt 0 ]; do
  case $1 in
    --quick) quick=(--quick) ;;
    --json) [ $# -ge 2 ] || { echo "--json needs a file" >&2; exit 2; }; json=$(readlink -m "$2"); shift ;;
    -h|--help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
    *) echo "unknown option $1; see --help" >&2; exit 2 ;;
  esac
  shift
done

targets=(cairn_planning_benchmark cairn_scale_benchmark cairn_trace_benchmark cairn_save_load_benchmark cairn_link_benchmark cairn_failure_benchmark cairn_async_benchmark cairn_training_benchmark)
results=$(mktemp -d -t cairn_benchmark.XXXXXX)
trap 'rm -rf "$results"' EXIT

cd "$source_dir"
cmake/install_dependencies.sh >&2
if [ ! -f build/release/build.ninja ]; then
  mkdir -p build/release
  cmake --preset release >build/release/configure.log 2>&1 || { cat build/release/configure.log >&2; exit 1; }
fi
s3=()
if grep -q '^CAIRN_WITH_S3:BOOL=ON' build/release/CMakeCache.txt; then s3=(cairn_s3_benchmark); fi
cmake --build --preset release --parallel "$(nproc)" --target "${targets[@]}" "${s3[@]}" char_lm >&2

# PyTorch first: Cairn's own figure is judged by it.
if [ -n "${CAIRN_PYTORCH:-}" ]; then
  echo "=== PyTorch's distributed checkpoint" >&2
  extent=(5 64)  # repetitions, tensors
  [ ${#quick[@]} -eq 0 ] || extent=(1 16)
  eval "pytorch=($CAIRN_PYTORCH)"
  "${pytorch[@]}" - /dev/shm "${extent[@]}" <benchmarks/dcp_save.py >"$results/0_dcp.jsonl"
fi
for target in "${targets[@]}"; do
  echo "=== $target" >&2
  "build/release/bin/$target" "${quick[@]}" >"$results/1_$target.jsonl"
done
echo "=== resume" >&2
python3 benchmarks/resume.py build/release/bin "${quick[@]}" >"$results/1_resume.jsonl"
if [ ${#s3[@]} -gt 0 ]; then
  echo "=== s3" >&2
  python3 benchmarks/s3.py build/release/bin "${quick[@]}" >"$results/1_s3.jsonl"
fi
python3 benchmarks/report.py ${json:+--json "$json"} "$results"/*.jsonl
