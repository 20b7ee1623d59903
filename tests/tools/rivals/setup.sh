#!/usr/bin/env bash
# Installs the libraries that Kolo is compared with into a Python environment of their own; see
# --help.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$(cd "$here/../../.." && pwd)"
# shellcheck source=cmake/environment.sh
. "$root/cmake/environment.sh"

horovod_version=0.28.1
rivals="$kolo_cache/rivals" # compare.py looks for it there
python="$rivals/bin/python3"
log="$rivals/horovod.log"
free_mib_needed=10240

usage() {
  cat <<TEXT
Usage: tests/tools/rivals/setup.sh

Installs what compare.py compares Kolo with into $rivals:
  - from PyPI the packages of requirements.txt: PyTorch, whose wheel is the CUDA build and imports
    NVIDIA's libraries, and FairScale. A download of 2.7 GB, 5 GB when unpacked;
  - Horovod $horovod_version over MPI, built from its source distribution: some minutes;
  - Kolo's package, as it is in this checkout, anew each time: some minutes.
Builds Kolo's programs for it, too, in this checkout, and what they need (cmake/setup.sh).
Needs python3 with venv and its headers, a C++ compiler, CMake and MPI. Without Horovod, which it
reports, all other libraries can be compared.

  --help   show this text
TEXT
}

say() { printf 'rivals: %s\n' "$*"; }
fail() {
  printf 'rivals: error: %s\n' "$*" >&2
  exit 1
}

pip() { "$python" -m pip --quiet --disable-pip-version-check "$@" </dev/null; }

# --- from PyPI ---------------------------------------------------------------------------------

# The copy of the requirements is written last, so its presence shows a complete installation.
has_packages() { cmp -s "$here/requirements.txt" "$rivals/requirements.txt"; }

install_packages() {
  local free_mib
  mkdir -p "$rivals"
  free_mib="$(df -Pm "$rivals" | awk 'NR == 2 { print $4 }')"
  [ "$free_mib" -ge "$free_mib_needed" ] ||
    fail "$rivals has $free_mib MiB free, $free_mib_needed are needed"
  say "installing from PyPI into $rivals (a download of 2.7 GB, 5 GB when unpacked)"
  [ -x "$python" ] || python3 -m venv "$rivals"
  pip install --no-cache-dir --requirement "$here/requirements.txt"
  cp "$here/requirements.txt" "$rivals/requirements.txt"
}

# --- Horovod -----------------------------------------------------------------------------------

has_horovod() {
  "$python" -c "import horovod.torch as h; assert h.mpi_built()" 2>/dev/null
}

# build_horovod <empty folder>
build_horovod() (
  cd "$1"
  # No isolation: it is built against the installed torch.
  pip download --no-deps --no-build-isolation --no-binary horovod "horovod==$horovod_version"
  tar xzf "horovod-$horovod_version.tar.gz"
  cd "horovod-$horovod_version"
  # It asks for C++14; torch's headers are C++17.
  sed -i 's/CMAKE_CXX_STANDARD 14/CMAKE_CXX_STANDARD 17/' \
    CMakeLists.txt horovod/torch/CMakeLists.txt
  export HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1
  export HOROVOD_WITH_MPI=1 HOROVOD_WITHOUT_GLOO=1 HOROVOD_CPU_OPERATIONS=MPI
  export MAKEFLAGS=-j2
  pip install --no-deps --no-build-isolation --verbose .
)

install_horovod() {
  local work
  work="$(mktemp -d "$rivals/build.XXXXXX")"
  say "building Horovod $horovod_version; log: $log"
  # Not in a condition, where "set -e" would be off.
  set +e
  (set -e; build_horovod "$work") >"$log" 2>&1
  set -e
  rm -rf "$work"
  has_horovod && return
  tail -n 5 "$log" >&2
  say "Horovod's build failed; the other libraries can be compared"
}

install_kolo() {
  say "building Kolo's package"
  if command -v ccache >/dev/null; then export CMAKE_CXX_COMPILER_LAUNCHER=ccache; fi
  CMAKE_BUILD_PARALLEL_LEVEL="$(nproc)" pip install "$root/python" \
    --config-settings=cmake.define.KOLO_WITH_CUDA=OFF
}

build_programs() {
  "$root/cmake/setup.sh"
  # shellcheck source=cmake/environment.sh
  . "$root/cmake/environment.sh" # it may have brought CMake
  kolo_build release train_gpt synthetic_benchmark
}

setup() {
  has_packages || install_packages
  has_horovod || install_horovod
  install_kolo
  build_programs
  say "done; tests/tools/rivals/compare.py compares"
}

case "${1:-}" in
  "") setup ;;
  --help) usage ;;
  *)
    usage >&2
    exit 2
    ;;
esac
