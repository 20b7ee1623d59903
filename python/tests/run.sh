#!/usr/bin/env bash
# Installs the Python package into an environment of its own, with a torch from PyPI (3 GB), and
# tests it under mpirun. With an argument, a python that has torch: into that one's environment.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
# shellcheck source=cmake/environment.sh
. "$root/cmake/environment.sh"

python="${1:-$kolo_cache/torch/bin/python}"
if [ $# -eq 0 ] && [ ! -x "$python" ]; then
  python3 -m venv "$kolo_cache/torch"
  "$python" -m pip install --quiet --no-cache-dir "torch==2.11.0" numpy
fi
if command -v ccache >/dev/null; then export CMAKE_CXX_COMPILER_LAUNCHER=ccache; fi
CMAKE_BUILD_PARALLEL_LEVEL="$(nproc)" "$python" -m pip install --quiet "$root/python"
for test in distributed_test horovod_test optimizer_test docs_test; do
  "$python" "$root/python/tests/$test.py" mpirun --oversubscribe
done
