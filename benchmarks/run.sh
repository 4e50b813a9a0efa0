#!/bin/bash
# Builds the benchmarks as users run the library (preset `release`), runs them one after the other and prints a Markdown table:
# each figure beside the physical limit that was measured in the same run.
#
#   benchmarks/run.sh                  all of it
#   benchmarks/run.sh --quick          smaller and fewer repetitions: for a first look, not for the record
#   benchmarks/run.sh --json FILE      writes {name, value, unit, limit, ratio, goal, met, machine} as a list, too
#   benchmarks/run.sh --gpu            instead, what one needs CUDA devices for, and many small tensors: about six minutes
#   benchmarks/run.sh --build DIR      takes the benchmarks from this build of yours: nothing is installed or built
#
# CAIRN_PYTORCH: a command that runs real PyTorch on a Python program from standard input ("… -"); with it, saving is compared with
# PyTorch's own distributed checkpoint on the same machine. Works from any directory; checkpoints on disk are written in the directory of
# the source.
set -euo pipefail
source_dir=$(dirname "$(dirname "$(readlink -f "$0")")")

quick=()
json=
gpu=false
build=
while [ $# -gt 0 ]; do
  case $1 in
    --quick) quick=(--quick) ;;
    --json) [ $# -ge 2 ] || { echo "--json needs a file" >&2; exit 2; }; json=$(readlink -m "$2"); shift ;;
    --gpu) gpu=true ;;
    --build) [ $# -ge 2 ] || { echo "--build needs a directory" >&2; exit 2; }; build=$(readlink -f "$2"); shift ;;
    -h|--help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
    *) echo "unknown option $1; see --help" >&2; exit 2 ;;
  esac
  shift
done

targets=(cairn_planning_benchmark cairn_scale_benchmark cairn_trace_benchmark cairn_save_load_benchmark cairn_link_benchmark cairn_failure_benchmark cairn_async_benchmark cairn_training_benchmark)
$gpu && targets=(cairn_engine_benchmark cairn_async_benchmark cairn_save_load_benchmark cairn_planning_benchmark cairn_failure_benchmark)
results=$(mktemp -d -t cairn_benchmark.XXXXXX)
trap 'rm -rf "$results"' EXIT

cd "$source_dir"
s3=()
if [ -z "$build" ]; then
  build=build/release
  cmake/install_dependencies.sh >&2
  if [ ! -f build/release/build.ninja ]; then
    mkdir -p build/release
    cmake --preset release >build/release/configure.log 2>&1 || { cat build/release/configure.log >&2; exit 1; }
  fi
  if ! $gpu && grep -q '^CAIRN_WITH_S3:BOOL=ON' build/release/CMakeCache.txt; then s3=(cairn_s3_benchmark); fi
  cmake --build --preset release --parallel "$(nproc)" --target "${targets[@]}" "${s3[@]}" char_lm >&2
fi

# dcp OPTION...: PyTorch's own figures for the same work, by which Cairn's are judged
pytorch=()
[ -z "${CAIRN_PYTORCH:-}" ] || eval "pytorch=($CAIRN_PYTORCH)"
dcp() {
  [ ${#pytorch[@]} -eq 0 ] || "${pytorch[@]}" - "$@" <benchmarks/dcp_save.py >>"$results/0_dcp.jsonl"
}

# measure PROGRAM OPTION...
measure() {
  echo "=== $*" >&2
  "$build/bin/$1" "${@:2}" >>"$results/1_$1.jsonl"
}

if $gpu; then
  gpus=$(nvidia-smi --list-gpus | wc -l)
  state=("--cuda --mib 8192" "--mib 4096" "--cuda --mib 4096 --cold --at $PWD")
  [ "$gpus" -lt 2 ] || state+=("--cuda --ranks $gpus --mib $((16384 / gpus))")
  for options in "${state[@]}"; do
    # shellcheck disable=SC2086
    measure cairn_engine_benchmark $options
    # shellcheck disable=SC2086
    dcp --repeat 2 $options
  done
  measure cairn_engine_benchmark --ranks 8 --mib 512
  measure cairn_async_benchmark --cuda
  measure cairn_save_load_benchmark --small
  measure cairn_planning_benchmark
  measure cairn_failure_benchmark --quick --first 8
else
  extent=(--repeat 5 --tensors 64)
  [ ${#quick[@]} -eq 0 ] || extent=(--repeat 1 --tensors 16)
  dcp "${extent[@]}"
  for target in "${targets[@]}"; do measure "$target" "${quick[@]}"; done
  echo "=== resume" >&2
  python3 benchmarks/resume.py "$build/bin" "${quick[@]}" >"$results/1_resume.jsonl"
  echo "=== read_once_hosts" >&2
  python3 benchmarks/read_once_hosts.py "$build/bin" "${quick[@]}" >"$results/1_read_once_hosts.jsonl"
fi
if [ ${#s3[@]} -gt 0 ]; then
  echo "=== s3" >&2
  python3 benchmarks/s3.py "$build/bin" "${quick[@]}" >"$results/1_s3.jsonl"
fi
python3 benchmarks/report.py ${json:+--json "$json"} "$results"/*.jsonl
