#!/usr/bin/env bash
# The first script to run on a machine with a GPU where Kolo has never run: from the driver to
# training. The steps that are most likely to hang come last, one by one. Each step has a time
# limit, and a failed step does not stop the others.
#   tests/gpu/first_hour.sh [--rehearse] [--folder build/release] [--report FILE]
# --folder: programs that are already built: FOLDER/tests and FOLDER/examples. FOLDER/env, if it
#   exists, is sourced first, for PATH and LD_LIBRARY_PATH of bundled libraries. Without --folder
#   the machine must be able to reach PyPI.
# --rehearse: without a GPU, steps that need one are skipped, which is not a failure.
# Writes one report: versions, and the result and last output of each step.
set -uo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
folder="$root/build/release"
is_built_here=true
report=""
is_rehearsal=false
while [ "$#" -gt 0 ]; do
  case "$1" in
    --rehearse) is_rehearsal=true ;;
    --folder)
      folder="$(cd "${2:?--folder needs a folder}" && pwd)" || exit 2
      is_built_here=false
      shift
      ;;
    --report) report="${2:?--report needs a file}"; shift ;;
    *) sed -n '2,10p' "${BASH_SOURCE[0]}" | cut -c3-; exit 2 ;;
  esac
  shift
done
report="${report:-$folder/first_hour.txt}"
# shellcheck disable=SC1091
if [ -f "$root/cmake/environment.sh" ]; then . "$root/cmake/environment.sh"; fi
# shellcheck disable=SC1091
if [ -f "$folder/env" ]; then . "$folder/env"; fi
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

# All ranks share one GPU. With NCCL_DEBUG=WARN NCCL says why it fails.
export KOLO_SHARE_GPU=on NCCL_DEBUG=WARN OMP_NUM_THREADS=4
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1
has_gpu=false
if nvidia-smi -L > /dev/null 2>&1; then has_gpu=true; fi
if ! $has_gpu && ! $is_rehearsal; then
  printf 'first_hour.sh: error: no GPU here; --rehearse tries the steps without one\n' >&2
  exit 2
fi

passed=0
failed=0
skipped=0
say() { printf '%s\n' "$*" | tee -a "$report"; }

# says_no_gpu <status> <output>: whether the step only found that there is no GPU.
says_no_gpu() {
  [ "$1" -eq 77 ] || { grep -qiE 'no (NVIDIA )?GPU' "$2" && ! grep -q 'FAILED' "$2"; }
}

# step <seconds> <name> <command>...
step() {
  local limit="$1" name="$2" output="$work/output" begin="$SECONDS" status=0 how
  shift 2
  if [[ "$1" == "$folder"/* && ! -x "$1" ]]; then
    status=127
    printf '%s is not there: build it, or carry it along\n' "$1" > "$output"
  else
    timeout --kill-after=10 "$limit" "$@" > "$output" 2>&1 < /dev/null || status=$?
  fi
  if ! $has_gpu && says_no_gpu "$status" "$output"; then
    how="needs a GPU"
    skipped=$((skipped + 1))
  elif [ "$status" -eq 0 ]; then
    how="passed"
    passed=$((passed + 1))
  else
    how="FAILED with $status"
    [ "$status" -ne 124 ] || how="FAILED: not ended after $limit s"
    failed=$((failed + 1))
  fi
  say "$(printf '%-58s %s, %d s' "$name" "$how" "$((SECONDS - begin))")"
  {
    printf '    $ %s\n' "$*"
    tail -n "${lines:-15}" "$output" | cut -c1-200 | sed 's/^/    | /'
  } >> "$report"
}

# needs_gpu <command>...: for tools that are installed with a GPU.
needs_gpu() {
  if ! $has_gpu; then
    printf 'needs a GPU\n'
    return 77
  fi
  "$@"
}
export -f needs_gpu
export has_gpu
# with_gpu <seconds> <name> <command>...
with_gpu() {
  local limit="$1" name="$2"
  shift 2
  step "$limit" "$name" bash -c 'needs_gpu "$@"' needs_gpu "$@"
}

# on <ranks> <seconds> <name> <program> <argument>...: runs the step under mpirun.
on() {
  local ranks="$1" limit="$2" name="$3" program="$folder/$4"
  shift 4
  if [ ! -x "$program" ]; then
    step "$limit" "$name, $ranks ranks" "$program"
    return
  fi
  step "$limit" "$name, $ranks ranks" mpirun --oversubscribe -np "$ranks" "$program" "$@"
}

# bench <ranks> <seconds> <name> <argument>...: kolo-bench on GPUs, compared with NCCL in separate
# processes.
bench() {
  local ranks="$1" limit="$2" name="$3"
  shift 3
  step "$limit" "$name, $ranks ranks" "$folder/examples/kolo-bench" "$@" --device cuda \
    --baseline nccl --np "$ranks"
}

: > "$report"
say "The first hour on a GPU, $(date -u +'%Y-%m-%d %H:%M') UTC"
say "Kolo: $(git -C "$root" log -1 --format='%h %s' 2> /dev/null || printf 'no repository here')"
say "MPI: $(mpirun --version 2>&1 | head -n 1)"
linked="$(ldd "$folder/tests/runtime_gpu_test" 2>&1 |
  sed -nE 's/^\s*(lib(cudart|nccl)\S* => (\S+|not found)).*/\1/p')"
say "libraries: ${linked//$'\n'/, }"
say ""

say "1 The driver, CUDA and NCCL"
with_gpu 30 "nvidia-smi" nvidia-smi
# shellcheck disable=SC2016
step 60 "all libraries are found" bash -c '! ldd "$1" | grep "not found"' ldd \
  "$folder/tests/runtime_gpu_test"
step 300 "NCCL with one rank" "$folder/tests/nccl_test"
# shellcheck disable=SC2016
with_gpu 60 "NCCL takes buffers" bash -c 'NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=REG "$1" \
  --gtest_filter="*RegisteredMemory*" 2>&1 | grep -i "register comm"' take "$folder/tests/nccl_test"
step 300 "streams, events, kernels" "$folder/tests/cuda_gpu_test"
lines=40 step 120 "bandwidth of the pack kernel" "$folder/tests/convert_bandwidth"
with_gpu 600 "compute-sanitizer" compute-sanitizer --error-exitcode 1 "$folder/tests/cuda_gpu_test"

say "2 Collectives between processes"
late='*ProcessSet*:*Holds*'
for ranks in 1 2; do
  on "$ranks" 300 "collectives" tests/runtime_gpu_test --gtest_filter="-$late"
done

say "3 Training, beside the CPU"
cat > "$work/compare.py" << 'PYTHON'
"""Digests and losses of two reports of train_gpt; status 1 where the losses differ."""
import json
import sys

ours, theirs = (json.load(open(name)) for name in sys.argv[1:])
print("digest", ours["parameters_digest"], "on the GPU,", theirs["parameters_digest"], "on the CPU")
losses = list(zip(ours["losses"], theirs["losses"]))
print("loss", *losses[-1], "largest difference", max(abs(a - b) for a, b in losses))
sys.exit(any(abs(a - b) > 1e-2 for a, b in losses) or bool(ours["different_ranks"]))
PYTHON
tiny=(--layers 1 --width 32 --heads 2 --context 16 --batch 4 --steps 20 --text "$root/docs")
for ranks in 1 2; do
  on "$ranks" 120 "train_gpt on the CPU" examples/train_gpt "${tiny[@]}" --json "$work/cpu.json"
  for mode in none optimizer gradients full; do
    on "$ranks" 180 "train_gpt --shard $mode" examples/train_gpt "${tiny[@]}" --device cuda \
      --shard "$mode" --json "$work/gpu.json"
    with_gpu 20 "    beside the CPU" python3 "$work/compare.py" "$work/gpu.json" "$work/cpu.json"
    rm -f "$work/gpu.json"
  done
done
for codec in int8 one_bit; do
  for device in cpu cuda; do
    on 2 180 "train_gpt --compression $codec, $device" examples/train_gpt "${tiny[@]}" \
      --device "$device" --compression "$codec" --json "$work/$device.json"
  done
  with_gpu 20 "    beside the CPU" python3 "$work/compare.py" "$work/cuda.json" "$work/cpu.json"
  rm -f "$work/cuda.json"
done

say "4 Speed"
for ranks in 1 2; do
  for algo in ring auto; do
    lines=60 KOLO_NCCL_ALGO="$algo" bench "$ranks" 300 "Kolo by $algo, NCCL by ring and auto" \
      allreduce --max 256MB
  done
  # Without registered buffers NCCL copies.
  for registers in 1 0; do
    lines=60 NCCL_LOCAL_REGISTER="$registers" bench "$ranks" 300 \
      "the gradients of ResNet-50, NCCL_LOCAL_REGISTER=$registers" gradients --model resnet50
  done
done
lines=60 on 2 300 "NCCL in Kolo's own processes" examples/kolo-bench allreduce --device cuda \
  --baseline nccl --max 1MB
lines=30 on 1 300 "train_gpt --efficiency" examples/train_gpt --preset medium --device cuda \
  --steps 100 --text "$root/docs" --efficiency
lines=30 on 1 300 "synthetic_benchmark --efficiency" examples/synthetic_benchmark --device cuda \
  --efficiency

say "5 What may hang, one by one"
step 120 "graphs that others capture" "$folder/tests/cuda_gpu_test" --gtest_filter='*Capture*'
for ranks in 1 2 4; do
  on "$ranks" 300 "process sets, held operations" tests/runtime_gpu_test --gtest_filter="$late"
done
NCCL_LAUNCH_ORDER_IMPLICIT=0 on 2 300 "process sets, ordered by events" tests/runtime_gpu_test \
  --gtest_filter="$late"
# Kolo's communicator does not block, for which NCCL starts a thread in each call; theirs does.
for group in 1 16; do
  lines=30 bench 2 180 "latency, groups of $group small tensors" allreduce --max 4KB \
    --group "$group"
done
on 4 300 "collectives" tests/runtime_gpu_test --gtest_filter="-$late"

if $is_built_here; then
  say "6 From nothing but the driver"
  lines=20 step 3600 "examples/run.sh --device cuda" "$root/examples/run.sh" --device cuda \
    --steps 20
fi

say ""
say "passed $passed, failed $failed, need a GPU $skipped; details in $report"
[ "$failed" -eq 0 ]
