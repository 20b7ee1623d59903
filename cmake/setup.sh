#!/usr/bin/env bash
# Installs what Kolo's build needs and this machine lacks; see --help.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck source=cmake/environment.sh
. "$here/environment.sh"
# shellcheck source=cmake/libtorch.sh
. "$here/libtorch.sh"
# shellcheck source=cmake/cuda.sh
. "$here/cuda.sh"
# shellcheck source=cmake/test_tools.sh
. "$here/test_tools.sh"

usage() {
  cat <<TEXT
Usage: cmake/setup.sh [--core] [--cuda] [--tests] [--check]

Installs what Kolo's build needs and this machine lacks:
  - compiler, CMake, Ninja, Open MPI, Highway, FlatBuffers, xxHash, CLI11, nlohmann_json,
    GoogleTest, Google Benchmark, Python: with apt, as root or through sudo; without either, CMake,
    Ninja and Open MPI come from PyPI, and what else is missing is listed;
  - LibTorch $torch_version (CPU) from its PyPI wheel into $torch_dir,
    unless CMAKE_PREFIX_PATH or Torch_DIR names a LibTorch;
  - with --cuda, instead: LibTorch $torch_version with its CUDA part, CUDA $cuda_series with its
    compiler, and NCCL, in the versions that LibTorch's wheel names, from PyPI into
    $cuda_torch_dir, where CMake finds them with
    KOLO_WITH_CUDA=ON; the GPU's driver, $oldest_driver or newer, must be there to run programs;
  - for one test, which is skipped without them: the Python packages safetensors and NumPy, from
    PyPI into $kolo_python, unless python3 has them;
  - with --tests, for tests that are skipped without them, from PyPI: clang-format $format_version
    and clang-tidy $tidy_version into $kolo_tools,
    MPICH $mpich_version into $mpich_folder;
    with apt, ccache and mold, which only save time, clang, which .ci/run compiles with, and
    libucx-dev, with which ranks on several hosts start without MPI.
Says what it is about to install before it does. Does nothing where nothing is missing.

  --core   no LibTorch, and no Python packages: enough for kolo::core and kolo-bench
  --cuda   what builds for GPUs: about 2.5 GB to download, 4 GB on the disk
  --tests  clang-format, clang-tidy, MPICH, ccache, mold, clang and UCX as well
  --check  only report; exit status 1 if something is missing
  --help   show this text
TEXT
}

say() { printf 'setup: %s\n' "$*"; }
fail() {
  printf 'setup: error: %s\n' "$*" >&2
  exit 1
}

# --- detection ---------------------------------------------------------------------------------

# at_least <version> <wanted>
at_least() { [ "$(printf '%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

has_command() { command -v "$1" >/dev/null 2>&1; }

named_prefixes() { printf '%s\n' "${CMAKE_PREFIX_PATH:-}" | tr ':;' '\n'; }

# has_header <path below include/>
has_header() {
  local prefix
  while IFS= read -r prefix; do
    if [ -n "$prefix" ] && [ -e "$prefix/include/$1" ]; then return 0; fi
  done < <(named_prefixes && printf '%s\n' /usr/local /usr)
  return 1
}

has_compiler() {
  has_command "${CXX:-c++}" && printf '#include <coroutine>\n' |
    "${CXX:-c++}" -std=c++20 -x c++ -fsyntax-only - 2>/dev/null
}
has_cmake() { has_command cmake && at_least "$(cmake --version | sed -n '1s/[^0-9]*//p')" 3.22; }
has_mpi() { has_command mpirun && has_command mpicc; }
has_flatbuffers() { has_command flatc && has_header flatbuffers/flatbuffers.h; }
has_python() { has_command python3 && python3 -c 'import venv, ensurepip' 2>/dev/null; }

# One line each: what, how to see it, Debian packages, PyPI package or "-".
requirements() {
  cat <<'TABLE'
C++20 compiler|has_compiler|g++|-
CMake 3.22|has_cmake|cmake|cmake
Ninja|has_command ninja|ninja-build|ninja
MPI|has_mpi|libopenmpi-dev openmpi-bin|openmpi
Highway|has_header hwy/highway.h|libhwy-dev|-
FlatBuffers|has_flatbuffers|libflatbuffers-dev flatbuffers-compiler|-
xxHash|has_header xxhash.h|libxxhash-dev|-
CLI11|has_header CLI/CLI.hpp|libcli11-dev|-
nlohmann_json|has_header nlohmann/json.hpp|nlohmann-json3-dev|-
GoogleTest|has_header gtest/gtest.h|libgtest-dev|-
Google Benchmark|has_header benchmark/benchmark.h|libbenchmark-dev|-
Python 3 with venv|has_python|python3 python3-venv|-
TABLE
}

# Prints the lines of the table whose probe fails.
missing_requirements() {
  local what probe apt pypi
  while IFS='|' read -r what probe apt pypi; do
    $probe || printf '%s|%s|%s|%s\n' "$what" "$probe" "$apt" "$pypi"
  done < <(requirements)
}

# column <n> <lines>: the n-th column without "-", in one line.
column() { printf '%s\n' "$2" | cut -d'|' -f"$1" | grep -vx -e - | paste -sd ' ' || true; }
names() { printf '%s\n' "$1" | cut -d'|' -f1 | paste -sd ',' | sed 's/,/, /g'; }

# --- installation ------------------------------------------------------------------------------

as_root=() # the prefix that makes a command run as root
can_use_apt() {
  has_command apt-get || return 1
  if [ "$(id -u)" -eq 0 ]; then return 0; fi
  has_command sudo || return 1
  as_root=(sudo)
  sudo -n true 2>/dev/null || { [ -t 0 ] && say "apt needs root:" && sudo -v; }
}

install_with_apt() {
  local packages=()
  read -ra packages <<<"$(column 3 "$1")"
  say "installing with apt: ${packages[*]}"
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -qq -y --no-install-recommends ca-certificates "${packages[@]}" >/dev/null
}

# A private Python environment, for pip and what it installs.
pip() {
  if ! "$kolo_tools/bin/python3" -m pip --version >/dev/null 2>&1; then
    python3 -m venv --clear "$kolo_tools" >/dev/null
  fi
  "$kolo_tools/bin/python3" -m pip --quiet --disable-pip-version-check "$@" </dev/null
}

install_from_pypi() {
  local packages=()
  read -ra packages <<<"$(column 4 "$1")"
  if [ ${#packages[@]} -eq 0 ] || ! has_python; then return 0; fi
  say "no apt as root: installing from PyPI into $kolo_tools: ${packages[*]}"
  pip install "${packages[@]}"
  PATH="$kolo_tools/bin:$PATH"
}

install_packages() {
  local missing
  missing="$(missing_requirements)"
  if [ -z "$missing" ]; then return 0; fi
  say "missing: $(names "$missing")"
  if can_use_apt; then install_with_apt "$missing"; else install_from_pypi "$missing"; fi
  hash -r
  missing="$(missing_requirements)"
  if [ -z "$missing" ]; then return 0; fi
  fail "still missing: $(names "$missing")." \
    "On Debian and Ubuntu, as root: apt-get install $(column 3 "$missing")"
}

# --- commands ----------------------------------------------------------------------------------

report_cuda_torch() {
  if [ -n "$(named_cuda_torch)" ]; then
    printf '%-20s found in %s\n' "LibTorch for CUDA" "$(named_torch)"
  elif has_cuda_torch; then
    printf '%-20s found in %s\n' "LibTorch for CUDA" "$cuda_torch_dir/torch"
  else
    printf '%-20s missing (PyPI: torch %s and what it names)\n' "LibTorch for CUDA" \
      "$torch_version"
    return 1
  fi
}

report_gpu() {
  local text
  if text="$(has_gpu 2>&1)"; then
    printf '%-20s found\n' GPU
  else
    printf '%-20s missing, to run programs: %s\n' GPU "$(head -n 1 <<<"$text")"
  fi
}

report_torch() {
  local torch
  torch="$(named_torch)"
  if [ -n "$torch" ]; then
    printf '%-20s found in %s\n' LibTorch "$torch"
  elif has_torch; then
    printf '%-20s found in %s\n' "LibTorch $torch_version" "$torch_dir/torch"
  else
    printf '%-20s missing (PyPI: torch %s)\n' LibTorch "$torch_version"
    return 1
  fi
}

check() {
  local what probe apt pypi status=0
  while IFS='|' read -r what probe apt pypi; do
    if $probe; then
      printf '%-20s found\n' "$what"
    else
      printf '%-20s missing (apt: %s%s)\n' "$what" "$apt" \
        "$([ "$pypi" = - ] || printf '; PyPI: %s' "$pypi")"
      status=1
    fi
  done < <(requirements)
  if [ -n "$with_cuda" ]; then
    report_cuda_torch || status=1
    report_gpu
  fi
  if [ -z "$core_only" ]; then
    if [ -z "$with_cuda" ]; then report_torch || status=1; fi
    report_packages
  fi
  if [ -n "$with_tests" ]; then
    report_linters
    report_mpich
    report_build_tools
  fi
  return $status
}

needs_torch() { [ -z "$core_only$with_cuda" ] && [ -z "$named" ] && ! has_torch; }
needs_cuda_torch() { [ -n "$with_cuda" ] && [ -z "$named" ] && ! has_cuda_torch; }
needs_packages() { [ -z "$core_only" ] && [ -z "$(test_python)" ]; }
needs_linters() { [ -n "$with_tests" ] && ! has_linters; }
needs_mpich() { [ -n "$with_tests" ] && ! has_mpich; }
needs_build_tools() { [ -n "$with_tests" ] && ! has_build_tools; }

setup() {
  named="$(named_torch)" # on a line of its own: it may fail
  if [ -n "$with_cuda" ] && [ -n "$named" ] && [ -z "$(named_cuda_torch)" ]; then
    fail "--cuda: the LibTorch in $named has no CUDA part, lib/libtorch_cuda.so"
  fi
  if [ -z "$(missing_requirements)" ] && ! needs_torch && ! needs_cuda_torch && ! needs_packages &&
    ! needs_linters && ! needs_mpich && ! needs_build_tools; then
    return 0
  fi
  mkdir -p "$kolo_cache"
  exec {lock}>"$kolo_cache/lock"
  flock -n "$lock" || { say "waiting for another set-up to end" && flock "$lock"; }
  install_packages
  if needs_torch; then install_torch; fi
  if needs_cuda_torch; then install_cuda_torch; fi
  if needs_packages; then install_test_python; fi
  if needs_linters; then install_linters; fi
  if needs_mpich; then install_mpich; fi
  if needs_build_tools; then install_build_tools; fi
  say "done"
}

core_only=
with_cuda=
with_tests=
action=setup
for argument in "$@"; do
  case "$argument" in
    --core) core_only=yes ;;
    --cuda) with_cuda=yes ;;
    --tests) with_tests=yes ;;
    --check) action=check ;;
    --help) action=usage ;;
    *)
      printf 'setup: error: unknown argument: %s\n\n' "$argument" >&2
      usage >&2
      exit 2
      ;;
  esac
done
$action
