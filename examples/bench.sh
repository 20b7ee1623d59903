#!/usr/bin/env bash
# Measures Kolo's collectives beside plain MPI; see --help.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
folder="$root/build/bench"
# shellcheck source=cmake/environment.sh
. "$root/cmake/environment.sh"
# shellcheck source=cmake/libtorch.sh
. "$root/cmake/libtorch.sh"
# shellcheck source=cmake/cuda.sh
. "$root/cmake/cuda.sh"

usage() {
  cat <<TEXT
Usage: examples/bench.sh [COLLECTIVE] [FLAG...]

Sets up, builds kolo-bench (without LibTorch, in about a minute), and measures COLLECTIVE, by
default allreduce, beside plain MPI: prints a table and draws $folder/bench.svg.
Flags go to kolo-bench, which docs/bench.md describes:

  examples/bench.sh --np 4 --max 256MB
  examples/bench.sh gradients --model resnet50 --json rows.json
  examples/bench.sh alltoall --plot alltoall.svg
  examples/bench.sh --device cuda --np 8      # on GPUs, beside NCCL; a driver is all they need

kolo-bench and kolo-bench-mpi, the plain MPI program, lie in $folder/examples afterwards.
TEXT
}

# has_flag <flag> <argument>...
has_flag() {
  local flag="$1" argument
  shift
  for argument in "$@"; do
    case "$argument" in "$flag" | "$flag"=*) return 0 ;; esac
  done
  return 1
}

if has_flag --help "$@" || has_flag -h "$@"; then
  usage
  exit
fi

setup=("$root/cmake/setup.sh" --core)
build=(bench)
baseline=mpi
if wants_gpu "$@"; then
  has_gpu || {
    printf 'bench.sh: error: --device cuda cannot run on this machine\n' >&2
    exit 2
  }
  setup+=(--cuda)
  build+=(-DKOLO_WITH_CUDA=ON)
  baseline=nccl
fi
"${setup[@]}"
# Again, since the set-up may have installed tools.
# shellcheck source=cmake/environment.sh
. "$root/cmake/environment.sh"
kolo_build "${build[@]}"

arguments=("$@")
if ! has_flag --baseline "$@"; then arguments+=(--baseline "$baseline"); fi
if ! has_flag --plot "$@"; then arguments+=(--plot "$folder/bench.svg"); fi
"$folder/examples/kolo-bench" "${arguments[@]}"
if ! has_flag --plot "$@"; then printf '\nplot: %s\n' "$folder/bench.svg"; fi
