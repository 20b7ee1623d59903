#!/usr/bin/env bash
# The test command: sets up, builds, runs every test of the library, then the core's one-process
# tests under AddressSanitizer and ThreadSanitizer, and under the former also random training
# programs and the backend of c10d. Ends with the numbers passed, failed, skipped. Arguments are
# settings for CMake, and presets, of which it runs everything instead:
# tests/run.sh -DCMAKE_COMPILE_WARNING_AS_ERROR=ON
# tests/run.sh asan-torch tsan-torch
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
definitions=() presets=()
for argument in "$@"; do
  case "$argument" in
    -D*) definitions+=("$argument") ;;
    [a-z]*) presets+=("$argument") ;;
    *)
      sed -n '2,/^set/{/^#/s/^# //p}' "${BASH_SOURCE[0]}"
      case "$argument" in -h | --help) exit ;; *) exit 2 ;; esac
      ;;
  esac
done
short=
if [ "${#presets[@]}" -eq 0 ]; then
  presets=(release asan tsan asan-torch)
  short=asan-torch # all of it would take longer than everything else
fi

"$root/cmake/setup.sh" --tests
# shellcheck source=cmake/environment.sh
. "$root/cmake/environment.sh"

# ThreadSanitizer needs its memory layout undisturbed; not every container grants that.
unshuffled=()
if setarch --addr-no-randomize true 2>/dev/null; then unshuffled=(setarch --addr-no-randomize); fi

builds=()
for preset in "${presets[@]}"; do
  printf '\n== %s ==\n' "$preset"
  build="$root/build/$preset"
  targets=() chosen=()
  if [ "$preset" = "$short" ]; then targets=(torch_short_tests) chosen=(-L '^torch_short$'); fi
  kolo_build "$preset" "${definitions[@]}" "${targets[@]}"
  # What an earlier run has left must not count.
  rm -rf "$build"/tests.{json,xml} "$build/results"
  mkdir "$build/results"
  cd "$root"
  ctest --preset "$preset" "${chosen[@]}" --show-only=json-v1 > "$build/tests.json"
  # Tests wait more than they compute, above all those under mpirun, of which the preset release
  # has most: on two cores, three of these run simultaneously with another.
  at_once=$(($(nproc) + 1))
  if [ "$preset" = release ]; then at_once=$((at_once + 7)); fi
  # Failed tests are counted below; the other presets should still run.
  "${unshuffled[@]}" ctest --preset "$preset" "${chosen[@]}" --parallel "$at_once" \
    --output-junit "$build/tests.xml" --test-output-size-failed 100000000 || true
  builds+=("$preset=$build")
done

printf '\n'
python3 "$root/tests/summary.py" "${builds[@]}"
