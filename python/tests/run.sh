#!/usr/bin/env bash
# Installs the Python package into an environment of its own, with a torch from PyPI (3 GB), and
# tests it under mpirun. With an argument, a python that has torch: into that one's environment.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
# shellcheck source=cmake/environment.sh
. "$root/cmake/environment.sh"
# shellcheck source=cmake/libtorch.sh
. "$root/cmake/libtorch.sh"

python="${1:-$kolo_cache/torch-$torch_version/bin/python}"
if [ $# -eq 0 ] && ! "$python" -c "import torch, numpy" 2>/dev/null; then
  python3 -m venv --clear "${python%/bin/python}"
  "$python" -m pip install --quiet --no-cache-dir "torch==$torch_version" numpy
fi
if command -v ccache >/dev/null; then export CMAKE_CXX_COMPILER_LAUNCHER=ccache; fi
CMAKE_BUILD_PARALLEL_LEVEL="$(nproc)" "$python" -m pip install --quiet "$root/python" \
  cloudpickle expecttest # the latter for torch_suite.py
status=0
for test in "$root"/python/tests/*_test.py; do
  printf '\n== %s ==\n' "$(basename "$test" .py)"
  "$python" "$test" mpirun --oversubscribe || status=1
done
exit "$status"
