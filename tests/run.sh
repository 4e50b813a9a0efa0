#!/bin/bash
# Installs what is needed, builds, and runs all tests: as users run Cairn (preset `release`), all but the largest ones under the
# address and undefined-behaviour sanitizers (preset `asan`), and those of staging, engine and tiers under the thread sanitizer (preset
# `tsan`). The tests that find most come first.
#
#   tests/run.sh                  all three, and the builds of `tests/builds.sh --ci`
#   tests/run.sh --preset dev     that preset only; may be given more than once
#   tests/run.sh --quick          `release` only, without the largest tests
#   tests/run.sh --minutes 85     leaves out, and names, what would not end in this time. The first tests always run.
#
# Works from any directory and may be run again. CAIRN_PYTORCH: a command that runs real PyTorch (2.6 or newer) on a Python file.
# Without it, PyTorch is installed in build/pytorch; where that is impossible, and with --quick, the tests that need it are reported as
# skipped. Ends with a summary of all presets, with the tests that failed or did not run; exits non-zero if any test failed.
set -euo pipefail
source_dir=$(dirname "$(dirname "$(readlink -f "$0")")")

presets=()
quick=false
minutes=
while [ $# -gt 0 ]; do
  case $1 in
    --preset) [ $# -ge 2 ] || { echo "--preset needs a name" >&2; exit 2; }; presets+=("$2"); shift ;;
    --quick) quick=true ;;
    --minutes)
      [[ ${2:-} =~ ^[1-9][0-9]*$ ]] || { echo "--minutes needs a number" >&2; exit 2; }
      minutes=$2
      shift ;;
    -h|--help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
    *) echo "unknown option $1; see --help" >&2; exit 2 ;;
  esac
  shift
done
# Each part: a preset (or `builds`), an option of ctest that selects tests, how long the part takes, in percent of the time until the first
# has ended, and the targets to build, if these are not all.
parts=()
if [ ${#presets[@]} -eq 0 ]; then
  parts=("release -LE large 0")
  $quick || parts+=("asan -LE process 40" "builds --ci . 25" "tsan -R ^(state|storage)$ 15 cairn_state_tests cairn_storage_tests" "release -L large 30" "asan -L process 60")
else
  for preset in "${presets[@]}"; do
    if $quick; then parts+=("$preset -LE large 100"); else parts+=("$preset -E ^$ 100"); fi
  done
fi

times=()
started=$SECONDS
step() {  # step <what> <command>...: says what begins and how long it took
  local what=$1 begun=$SECONDS
  shift
  echo "=== $what ($((SECONDS - started)) s since the start)"
  local status=0
  "$@" || status=$?
  times+=("$(printf '%6d s  %s' $((SECONDS - begun)) "$what")")
  return "$status"
}

cd "$source_dir"
# shellcheck source=tests/support/sanitizers.sh
. tests/support/sanitizers.sh
step "install packages" cmake/install_dependencies.sh --tests
install_pytorch() { CAIRN_PYTORCH=$(tests/pytorch/install_pytorch.sh build/pytorch); }
if [ -z "${CAIRN_PYTORCH:-}" ] && ! $quick; then
  step "install PyTorch" install_pytorch || echo "PyTorch cannot be installed; the tests that need it are skipped" >&2
  export CAIRN_PYTORCH
fi
jobs=$(nproc)
closing=()
failed=false
first_took=0
for part in "${parts[@]}"; do
  read -r preset option value percent targets <<<"$part"
  elapsed=$((SECONDS - started))
  if [ -n "$minutes" ] && [ "$first_took" -gt 0 ] && [ $((elapsed + first_took * percent / 100)) -gt $((minutes * 60)) ]; then
    closing+=("=== $preset $option $value" "NOT RUN: this machine is too slow to end it within $minutes minutes")
    continue
  fi
  if [ "$preset" = builds ]; then
    run_builds() { tests/builds.sh --ci 2>&1 | tee build/builds.log; }
    step "other builds" run_builds || failed=true
    closing+=("$(sed -n '/^=== the builds/,$p' build/builds.log)")
    continue
  fi
  step "configure $preset" cmake --preset "$preset"
  # shellcheck disable=SC2086
  step "build $preset" cmake --build --preset "$preset" --parallel "$jobs" ${targets:+--target $targets}
  log=build/$preset/tests.log
  # Two more than cores: many tests wait for processes and timers.
  run_tests() { ctest --preset "$preset" --no-tests=error --parallel $((jobs + 2)) "$option" "$value" 2>&1 | tee "$log"; }
  step "test $preset $option $value" run_tests || failed=true
  [ "$first_took" -gt 0 ] || first_took=$((SECONDS - started))
  closing+=("=== $preset $option $value" "$(grep 'tests passed\|tests failed\|No tests were found' "$log" | tail -1)"
            "$(sed -n '/The following tests did not run/,$p;/The following tests FAILED/,$p' "$log" | sed '/^\s*[0-9]/!d' | sort -u)")
done

echo
echo "=== what took how long"
printf '%s\n' "${times[@]}"
printf '%s\n' "${closing[@]}"
if $failed; then exit 1; fi
