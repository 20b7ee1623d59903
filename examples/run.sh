#!/usr/bin/env bash
# The main example: sets up, builds, and trains a small language model with NP processes (default
# 2). Without arguments it fails if the model is not good enough on held-out text.
#   NP=4 examples/run.sh --help
#   examples/run.sh --device cuda      # on all GPUs here; a driver is all that they need
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
# shellcheck source=cmake/environment.sh
. "$root/cmake/environment.sh"
# shellcheck source=cmake/libtorch.sh
. "$root/cmake/libtorch.sh"
# shellcheck source=cmake/cuda.sh
. "$root/cmake/cuda.sh"
program=train_gpt
build=release
setup=("$root/cmake/setup.sh")
if wants_gpu "$@"; then
  has_gpu || {
    printf 'run.sh: error: --device cuda cannot run on this machine\n' >&2
    exit 2
  }
  build=cuda
  setup+=(--cuda)
  NP="${NP:-$(count_gpus)}"
fi
ranks="${NP:-2}"
case "$ranks" in
  '' | *[!0-9]* | 0*)
    printf 'run.sh: error: NP is the number of processes, 1 or more; it is "%s"\n' "$ranks" >&2
    exit 2
    ;;
esac

"${setup[@]}"
# Again, since the set-up may have installed tools.
# shellcheck source=cmake/environment.sh
. "$root/cmake/environment.sh"
kolo_build "$build" "$program"

cores="$(lscpu --parse=CORE,SOCKET | grep -v '^#' | sort -u | wc -l)"
usable="$(nproc)"
if [ "$cores" -gt "$usable" ]; then cores="$usable"; fi
# Without a limit every process would use as many threads as the machine has cores.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$((cores > ranks ? cores / ranks : 1))}"

launch=(mpirun -np "$ranks")
if mpirun --version 2>&1 | grep -q 'Open MPI'; then
  if [ "$ranks" -gt "$cores" ]; then launch+=(--oversubscribe); fi
  # It would bind one or two ranks to a core each; on a GPU's host, all cores are for a few ranks.
  if [ "$build" = cuda ]; then launch+=(--bind-to none); fi
fi
if [ "$#" -eq 0 ]; then set -- --require-loss 1.8; fi
exec "${launch[@]}" "$root/build/$build/examples/$program" "$@"
