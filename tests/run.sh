#!/usr/bin/env bash
# The test command: sets up, builds, runs every test, then the core's one-process tests under
# AddressSanitizer and ThreadSanitizer, and random training programs under the former. Ends with the
# numbers passed, failed, skipped. Arguments are settings for CMake:
# tests/run.sh -DCMAKE_COMPILE_WARNING_AS_ERROR=ON
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
for argument in "$@"; do
  case "$argument" in
    -D*) ;;
    *)
      sed -n '2,/^set/{/^#/s/^# //p}' "${BASH_SOURCE[0]}"
      case "$argument" in -h | --help) exit ;; *) exit 2 ;; esac
      ;;
  esac
done

"$root/cmake/setup.sh" --tests
# shellcheck source=cmake/environment.sh
. "$root/cmake/environment.sh"

# ThreadSanitizer needs its memory layout undisturbed; not every container grants that.
unshuffled=()
if setarch --addr-no-randomize true 2>/dev/null; then unshuffled=(setarch --addr-no-randomize); fi

builds=()
for preset in release asan tsan asan-torch; do
  printf '\n== %s ==\n' "$preset"
  build="$root/build/$preset"
  programs=() chosen=()
  # All of the LibTorch layer would take longer than everything else: these use all shard modes.
  if [ "$preset" = asan-torch ]; then
    programs=(random_training_test checkpoint_fuzz)
    chosen=(-R '^(random_training_test|fuzz\.checkpoint)')
  fi
  kolo_build "$preset" "$@" "${programs[@]}"
  # What an earlier run has left must not count.
  rm -rf "$build"/tests.{json,xml} "$build/results"
  mkdir "$build/results"
  cd "$root"
  ctest --preset "$preset" "${chosen[@]}" --show-only=json-v1 > "$build/tests.json"
  # Tests wait more than they compute, above all those under mpirun, which only the preset release
  # has: on two cores, three of these run simultaneously with another.
  at_once=$(($(nproc) + 1))
  if [ "$preset" = release ]; then at_once=$((at_once + 7)); fi
  # Failed tests are counted below; the other presets should still run.
  "${unshuffled[@]}" ctest --preset "$preset" "${chosen[@]}" --parallel "$at_once" \
    --output-junit "$build/tests.xml" --test-output-size-failed 100000000 || true
  builds+=("$preset=$build")
done

printf '\n'
python3 "$root/tests/summary.py" "${builds[@]}"
