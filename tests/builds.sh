#!/bin/bash
# Compiles Cairn in every configuration that users choose, so that none breaks unseen.
#
#   tests/builds.sh              all parts: hours on 2 cores
#   tests/builds.sh --ci         the parts marked with *, which every change must pass: about 8 minutes
#   tests/builds.sh PART...      these parts
#
#   names         * no name of a library is in two of its sources
#   headers       * each header compiles alone: of those without LibTorch the ones that `gcc` does not compile alone, and those of the last
#                   commit; all if all parts are asked for
#   gcc           * GCC, each source of the product alone; all sources if all parts are asked for
#   clang         * Clang, with its analysis of locks: base/ to actors/; all sources if all parts are asked for
#   release         GCC, many sources as one (unity build)
#   s3_off          without libcurl and expat: presets dev, release and tsan
#   zstd_off        without zstd: presets dev and release
#   training_off    without Gloo and NCCL: presets dev and release
#   tests_off       preset release without tests is built, linked, installed, and used by a program
#   all_off         the same for the least that can be built, with Make, without preset and unity build, in a folder with a space in its name
#   trixie, sid     GCC 14 and LibTorch 2.6, GCC 16 and LibTorch 2.14, in the chroots of tests/platforms/run_on_debian.sh
#
# Works in build/builds, 2 GB. Only tests_off and all_off make objects. Ends with a summary; exits non-zero if a part failed.
set -uo pipefail
cd "$(dirname "$(dirname "$(readlink -f "$0")")")"

all="names headers gcc clang release s3_off zstd_off training_off tests_off all_off trixie sid"
ci=false
case ${1:-} in
  --ci) ci=true; set -- names headers gcc clang ;;
  -h|--help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
  '') # shellcheck disable=SC2086
      set -- $all ;;
esac
for part in "$@"; do
  [[ " $all " = *" $part "* ]] || { echo "unknown part $part; see --help" >&2; exit 2; }
done

work=build/builds
mkdir -p "$work"
rm -f "$work/seen"

# configure FOLDER OPTION...: the output is shown if that fails.
configure() {
  local folder=$work/$1
  rm -rf "$folder"
  cmake -B "$folder" "${@:2}" >"$work/configure.log" 2>&1 || { cat "$work/configure.log"; return 1; }
}

# compiles PRESET [OPTION OF CMAKE]... [-- OPTION OF compile_all.py...]: without objects. What compiled in an earlier part is left out.
compiles() {
  local preset=$1 options=()
  shift
  while [ $# -gt 0 ] && [ "$1" != -- ]; do options+=("$1"); shift; done
  configure compiled --preset "$preset" "${options[@]}" && tests/builds/compile_all.py "$work/compiled" --seen "$work/seen" "${@:2}"
  local status=$?
  rm -rf "$work/compiled"
  return $status
}

# is_usable PREFIX: a project outside finds the installation, and its program saves a checkpoint.
is_usable() {
  local prefix
  prefix=$(readlink -f "$1")
  rm -rf "$work/embed" "$work/run"
  configure embed -S examples/embed -G Ninja "-DCMAKE_PREFIX_PATH=$prefix" &&
    cmake --build "$work/embed" --target embed >"$work/build.log" 2>&1 || { cat "$work/build.log"; return 1; }
  "$work/embed/embed" "$work/run" | grep -x "step 7"
}

# is_built FOLDER OPTION OF CMAKE...: builds, installs and uses it.
is_built() {
  configure "$@" || return 1
  cmake --build "$work/$1" --parallel "$(nproc)" >"$work/build.log" 2>&1 || { grep -A 20 'error\|Error' "$work/build.log"; return 1; }
  rm -rf "$work/prefix"
  cmake --install "$work/$1" --prefix "$work/prefix" >"$work/build.log" || return 1
  is_usable "$work/prefix" && rm -rf "${work:?}/$1" "$work/prefix"
}

# on_debian SUITE
on_debian() {
  if [ ! -d "${CAIRN_PLATFORMS:-build/platforms}/$1" ]; then
    echo "skipped: there is no chroot; tests/platforms/run_on_debian.sh $1 makes one"
    return 77
  fi
  tests/platforms/run_on_debian.sh "$1" --shell "cmake/install_dependencies.sh
    cmake --preset dev -B /cairn/compiled
    tests/builds/compile_all.py /cairn/compiled"
}

product=(-DCAIRN_BUILD_TESTS=OFF -DCAIRN_BUILD_EXAMPLES=OFF -DCAIRN_BUILD_BENCHMARKS=OFF)
part_names() { python3 tests/house/check_names.py; }
part_headers() {
  local which=()
  if $ci; then
    which=("^((base|planning|messages|tracing|formats|storage|actors)/.*$(git diff --name-only HEAD~1 -- '*.hpp' 2>/dev/null | sed 's/^/|/' | tr -d '\n'))" --rest)
  fi
  configure headers --preset dev "${product[@]}" &&
    tests/builds/compile_all.py "$work/headers" --none &&
    python3 tests/house/check_headers.py "$work/headers" "${which[@]}" && rm -rf "$work/headers"
}
part_gcc() { if $ci; then compiles dev "${product[@]}"; else compiles dev; fi; }
part_clang() {
  command -v clang++ >/dev/null || { echo "clang++ is missing: cmake/install_dependencies.sh --tests installs it"; return 1; }
  local core='^(base|planning|messages|tracing|formats|storage|actors)/'
  if $ci; then compiles dev -DCMAKE_CXX_COMPILER=clang++ "${product[@]}" -- --only "$core"; else compiles dev -DCMAKE_CXX_COMPILER=clang++; fi
}
part_release() { compiles release; }
without() {  # without OPTION PRESET...
  local status=0 preset
  for preset in "${@:2}"; do compiles "$preset" "-D$1=OFF" || status=1; done
  return $status
}
part_s3_off() { without CAIRN_WITH_S3 dev release tsan; }
part_zstd_off() { without CAIRN_WITH_ZSTD dev release; }
part_training_off() { without CAIRN_WITH_TRAINING dev release; }
part_tests_off() { is_built tests_off --preset release -DCAIRN_BUILD_TESTS=OFF; }
part_all_off() {
  is_built 'all off' -G 'Unix Makefiles' "${product[@]}" -DCAIRN_BUILD_COMMANDS=OFF -DCAIRN_WITH_S3=OFF -DCAIRN_WITH_ZSTD=OFF \
           -DCAIRN_WITH_TRAINING=OFF
}
part_trixie() { on_debian trixie; }
part_sid() { on_debian sid; }

failed=false
summary=()
for part in "$@"; do
  echo "=== $part"
  begun=$SECONDS
  "part_$part"
  case $? in
    0) word=passed ;;
    77) word=skipped ;;
    *) word=FAILED failed=true ;;
  esac
  summary+=("$(printf '%6d s  %-7s %s' $((SECONDS - begun)) $word "$part")")
done
echo "=== the builds"
printf '%s\n' "${summary[@]}"
if $failed; then exit 1; fi
