#!/bin/bash
# Feeds every fuzz target with many inputs: by libFuzzer where preset `fuzz` was built, else by the seeded mutator of the tests,
# which takes other inputs each time and says how to repeat one.
#
#   tests/fuzz/soak.sh N [PRESET]     N inputs each; the mutator's binary is that of PRESET (asan)
#
# What libFuzzer finds is kept in build/fuzz/corpus, a failing input beside it. Ends with 1 if any target failed.
set -euo pipefail
cd "$(dirname "$(dirname "$(dirname "$(readlink -f "$0")")")")"
[ $# -ge 1 ] || { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 2; }
inputs=$1
preset=${2:-asan}
# shellcheck source=tests/support/sanitizers.sh
. tests/support/sanitizers.sh

libfuzzer=build/fuzz/bin/cairn_libfuzzer
if [ ! -x "$libfuzzer" ]; then
  first=$(($(date +%s) * 1000000))
  echo "no $libfuzzer: the seeded mutator's inputs from $first on"
  CAIRN_FUZZ_FIRST=$first CAIRN_FUZZ_INPUTS=$inputs exec "build/$preset/bin/cairn_fuzz_tests"
fi

failed=0
for target in $(CAIRN_FUZZ_TARGET='' "$libfuzzer" 2>&1 | sed -n 's/^CAIRN_FUZZ_TARGET must be one of://p'); do
  corpus=build/fuzz/corpus/$target
  mkdir -p "$corpus"
  log=build/fuzz/corpus/$target.log
  if CAIRN_FUZZ_TARGET=$target CAIRN_FUZZ_SEEDS=$corpus "$libfuzzer" -runs="$inputs" -max_len=65536 -rss_limit_mb=2048 \
      -malloc_limit_mb=256 -timeout=10 -artifact_prefix="$corpus.failed-" "$corpus" > "$log" 2>&1; then
    echo "$target: $(grep -E '^Done|DONE' "$log" | tail -1)"
  else
    failed=1
    echo "$target: FAILED, see $log"
  fi
done
exit $failed
