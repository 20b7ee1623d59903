#!/usr/bin/env bash
# Builds the fuzz targets for libFuzzer and runs them one after another; needs clang++ and its
# runtime (Debian: clang libclang-rt-14-dev).
#
#   tests/fuzz/run.sh [--seconds N] [TARGET...]     N seconds each, 60 by default; all targets
#
# New inputs are kept in build/fuzz/found/TARGET, and the next run starts from them. An input
# that ends a target is kept in build/fuzz/failed; "build/fuzz/tests/TARGET_fuzz FILE" runs it
# again.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
corpus="$root/tests/fuzz/corpus"
build="$root/build/fuzz"

seconds=60
targets=()
while [[ $# -gt 0 ]]; do
  case "$1" in
    --seconds) seconds="${2:?--seconds needs a number}"; shift 2 ;;
    -h|--help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    -*) echo "unknown option $1; --help shows all" >&2; exit 2 ;;
    *) targets+=("$1"); shift ;;
  esac
done
if [[ ${#targets[@]} -eq 0 ]]; then
  for file in "$root"/tests/fuzz/*_fuzz.cpp; do
    name="$(basename "$file" _fuzz.cpp)"
    # Needs LibTorch: the test fuzz.checkpoint runs it.
    [[ "$name" == checkpoint ]] || targets+=("$name")
  done
fi
for target in "${targets[@]}"; do
  [[ -e "$root/tests/fuzz/${target}_fuzz.cpp" ]] && continue
  echo "there is no target $target; tests/fuzz has a TARGET_fuzz.cpp for each" >&2
  exit 2
done

(cd "$root" && cmake --preset fuzz >/dev/null)
cmake --build "$build" --target fuzz_targets

printf '%-14s %12s %8s %9s %8s\n' target executions seconds coverage crashes
status=0
for target in "${targets[@]}"; do
  found="$build/found/$target"
  failed="$build/failed"
  log="$build/$target.log"
  mkdir -p "$found" "$failed"
  folders=("$found")
  [[ -d "$corpus/$target" ]] && folders+=("$corpus/$target")
  before="$(date +%s)"
  crashes=0
  "$build/tests/${target}_fuzz" -max_total_time="$seconds" -max_len=4096 -timeout=20 \
    -rss_limit_mb=2048 -print_final_stats=1 -artifact_prefix="$failed/$target-" \
    "${folders[@]}" >"$log" 2>&1 || crashes=1
  executions="$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")"
  coverage="$(grep -o 'cov: [0-9]*' "$log" | tail -1 | cut -d' ' -f2)"
  printf '%-14s %12s %8s %9s %8s\n' "$target" "${executions:-?}" "$(($(date +%s) - before))" \
    "${coverage:-?}" "$crashes"
  if [[ "$crashes" -ne 0 ]]; then
    status=1
    grep -E 'ERROR|runtime error|invariant|Test unit written' "$log" || tail -5 "$log"
  fi
done
exit "$status"
