#!/usr/bin/env bash
# The first script to run on a machine with a GPU where Kolo has never run. Its parts 1 to 5 take
# ten minutes: what the rest relies on comes first, what may hang has a time limit, and a part that
# fails does not stop the next. docs/gpu.md says how to read the result.
#   tests/gpu/first_hour.sh [--rehearse] [--folder build/cuda] [--logs FOLDER]
#     [--only 1,3] [--from 4]
# --folder: programs that were built elsewhere: FOLDER/tests and FOLDER/examples, and FOLDER/env,
#   which is sourced first: tests/gpu/bundle.sh makes all three. Without it: build/cuda, see
#   docs/gpu.md.
# --only, --from: these parts; the first part that is tried.
# --logs: where report.txt and the whole output of each step are written, and packed into logs.tgz;
#   the folder first_hour in the current one.
# --rehearse: without a GPU, steps that need one are skipped, which is not a failure, and filters of
#   tests are compared with the tests that there are. It takes three minutes.
#
# 1 libraries, NCCL with one rank, streams and kernels   60 s
# 2 collectives between 1 and 2 processes                60 s
# 3 training, beside the CPU                            150 s
# 4 speed of one rank                                   150 s
# 5 kernels, compute-sanitizer                          150 s
# 6 every test, mode and cast
# 7 process sets, held operations
# 8 speed of ranks that share the GPU, and of large tensors
set -uo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
folder="$root/build/cuda"
logs=first_hour
is_rehearsal=false
parts=(1 2 3 4 5 6 7 8)
usage() {
  sed -n '2,/^set/{/^#/s/^#//p}' "${BASH_SOURCE[0]}" | cut -c2-
  exit "$1"
}
while [ "$#" -gt 0 ]; do
  case "$1" in
    -h | --help) usage 0 ;;
    --rehearse) is_rehearsal=true ;;
    --folder | --only | --from | --logs)
      [ "$#" -gt 1 ] || usage 2
      case "$1" in
        --folder) folder="$(cd "$2" && pwd)" || exit 2 ;;
        --only) IFS=, read -ra parts <<< "$2" ;;
        --from) mapfile -t parts < <(seq "$2" 8) ;;
        --logs) logs="$2" ;;
      esac
      shift
      ;;
    *) usage 2 ;;
  esac
  shift
done
for part in "${parts[@]}"; do
  case "$part" in [1-8]) ;; *) usage 2 ;; esac
done
[ "${#parts[@]}" -gt 0 ] || usage 2
if [ ! -d "$folder/tests" ]; then
  printf 'first_hour.sh: error: no programs in %s: build them, or give --folder\n' "$folder" >&2
  exit 2
fi
mkdir -p "$logs" && logs="$(cd "$logs" && pwd)" || exit 2
report="$logs/report.txt"
# shellcheck disable=SC1091
if [ -f "$root/cmake/environment.sh" ]; then . "$root/cmake/environment.sh"; fi
# shellcheck disable=SC1091
if [ -f "$folder/env" ]; then . "$folder/env"; fi

# All ranks use the GPUs that there are. With NCCL_DEBUG=WARN NCCL says why it fails.
export KOLO_SHARE_GPU=on NCCL_DEBUG=WARN OMP_NUM_THREADS=4
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1
has_gpu=false
gpus=1
if nvidia-smi -L > /dev/null 2>&1; then
  has_gpu=true
  gpus="$(nvidia-smi -L | grep -c '^GPU')"
fi
if ! $has_gpu && ! $is_rehearsal; then
  printf 'first_hour.sh: error: no GPU here; --rehearse tries the steps without one\n' >&2
  exit 2
fi

passed=0
failed=0
skipped=0
part_ends=0 # SECONDS at which the part's time is over
say() { printf '%s\n' "$*" | tee -a "$report"; }

# part <number> <seconds> <title>: whether this part is wanted.
part() {
  local wanted
  for wanted in "${parts[@]}"; do
    if [ "$wanted" = "$1" ]; then
      part_ends=$((SECONDS + $2))
      say ""
      say "$1 $3"
      return 0
    fi
  done
  return 1
}

# says_no_gpu <status> <log>: whether the step only found that there is no GPU.
says_no_gpu() {
  [ "$1" -eq 77 ] || { grep -qiE 'no (NVIDIA )?GPU' "$2" && ! grep -q 'FAILED' "$2"; }
}

# filter_fits <command>...: whether each pattern of the command's --gtest_filter names a test.
filter_fits() {
  local argument program="" patterns=() pattern
  for argument in "$@"; do
    case "$argument" in
      "$folder"/*) program="$argument" ;;
      --gtest_filter=*) IFS=:- read -ra patterns <<< "${argument#*=}" ;;
    esac
  done
  for pattern in "${patterns[@]}"; do
    if [ -z "$pattern" ]; then continue; fi
    "$program" --gtest_list_tests --gtest_filter="$pattern" | grep -c '^  ' > /dev/null && continue
    printf 'FAILED: no test is named %s\n' "$pattern"
    return 1
  done
}

# step <seconds> <name> <command>...: its output goes to a log of its own, and its end
# to the report.
step() {
  local limit="$1" name="$2" log status=0 how begin="$SECONDS" session
  shift 2
  log="$logs/$(printf '%s' "$name" | tr -c 'A-Za-z0-9_.=-' '_').log"
  [ "$limit" -le $((part_ends - SECONDS)) ] || limit=$((part_ends - SECONDS))
  printf '$ %s\n' "$*" > "$log"
  if [ "$limit" -le 0 ]; then
    status=125
  elif [[ "$1" == "$folder"/* && ! -x "$1" ]]; then
    status=127
    printf '%s is not there: build it, or carry it along\n' "$1" >> "$log"
  elif ! $has_gpu && ! filter_fits "$@" >> "$log" 2>&1; then
    status=1
  else
    # A session of its own: ranks that outlive mpirun would keep the GPU busy.
    setsid timeout --kill-after=10 "$limit" "$@" >> "$log" 2>&1 < /dev/null &
    session="$!"
    wait "$session" || status=$?
    pkill -KILL -s "$session" || true
  fi
  if ! $has_gpu && says_no_gpu "$status" "$log"; then
    how="needs a GPU"
    skipped=$((skipped + 1))
  elif [ "$status" -eq 0 ]; then
    how="passed"
    passed=$((passed + 1))
  else
    how="FAILED with $status"
    case "$status" in
      124 | 137) how="FAILED: not ended after $limit s" ;;
      125) how="FAILED: the part's time was over" ;;
    esac
    failed=$((failed + 1))
  fi
  say "$(printf '%-64s %s, %d s' "$name" "$how" "$((SECONDS - begin))")"
  tail -n "${lines:-6}" "$log" | cut -c1-200 | sed 's/^/    | /' >> "$report"
}

# with_gpu <seconds> <name> <command>...: for tools that are installed with a GPU.
with_gpu() {
  local limit="$1" name="$2"
  shift 2
  if $has_gpu; then
    step "$limit" "$name" "$@"
  else
    step "$limit" "$name" sh -c 'echo "no GPU"; exit 77' "$@"
  fi
}

# on <ranks> <seconds> <name> <program> <argument>...: runs the step under mpirun.
on() {
  local ranks="$1" limit="$2" name="$3" program="$folder/$4" shared=()
  shift 4
  if [ ! -x "$program" ]; then
    step "$limit" "$name, $ranks ranks" "$program"
    return
  fi
  # To NCCL, ranks that share a GPU are hosts, which find each other over TCP; their kernels must
  # fit on the GPU together.
  if [ "$ranks" -gt "$gpus" ]; then shared=(env NCCL_SOCKET_IFNAME=lo NCCL_MAX_CTAS=4); fi
  step "$limit" "$name, $ranks ranks" "${shared[@]}" \
    mpirun --oversubscribe --bind-to none -np "$ranks" "$program" "$@"
}

# bench <ranks> <seconds> <name> <argument>...: kolo-bench on GPUs, compared with NCCL in separate
# processes.
bench() {
  local ranks="$1" limit="$2" name="$3" shared=()
  shift 3
  if [ "$ranks" -gt "$gpus" ]; then shared=(env NCCL_SOCKET_IFNAME=lo NCCL_MAX_CTAS=4); fi
  lines=60 step "$limit" "$name, $ranks ranks" "${shared[@]}" "$folder/examples/kolo-bench" "$@" \
    --device cuda --baseline nccl --np "$ranks"
}

cat > "$logs/compare.py" << 'PYTHON'
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

# trains <ranks> <argument>...: train_gpt on the CPU and on the GPU; losses must agree.
trains() {
  local ranks="$1" name="train_gpt${*:2}" cpu gpu
  shift
  name="${name// /_}"
  cpu="$logs/cpu-$ranks-$name.json" gpu="$logs/gpu-$ranks-$name.json"
  rm -f "$cpu" "$gpu"
  on "$ranks" 60 "$name on the CPU" examples/train_gpt "${tiny[@]}" "$@" --json "$cpu"
  on "$ranks" 60 "$name" examples/train_gpt "${tiny[@]}" "$@" --device cuda --json "$gpu"
  with_gpu 20 "$name, $ranks ranks, beside the CPU" python3 "$logs/compare.py" "$gpu" "$cpu"
}

: > "$report"
say "The first hour on a GPU, $(date -u +'%Y-%m-%d %H:%M') UTC"
say "Kolo: $(git -C "$root" log -1 --format='%h %s' 2> /dev/null || printf 'no repository here')"
say "MPI: $(mpirun --version 2>&1 | head -n 1)"
linked="$(ldd "$folder/tests/runtime_gpu_test" 2>&1 |
  sed -nE 's/^\s*(lib(cudart|nccl)\S* => (\S+|not found)).*/\1/p')"
say "libraries: ${linked//$'\n'/, }"

late='*ProcessSet*:*Holds*'
long='*MoreElementsThan32Bits*:*Capture*'
if part 1 60 "The driver, libraries, NCCL with one rank, streams and kernels"; then
  lines=20 with_gpu 20 "nvidia-smi" nvidia-smi
  for program in tests/runtime_gpu_test examples/train_gpt; do
    # shellcheck disable=SC2016
    step 20 "libraries of $program" sh -c \
      'found="$(ldd "$1")" && ! echo "$found" | grep "not found"' ldd "$folder/$program"
  done
  step 30 "nccl_test" "$folder/tests/nccl_test"
  step 50 "cuda_gpu_test" "$folder/tests/cuda_gpu_test" --gtest_filter="-$long"
fi

if part 2 60 "Collectives between processes"; then
  for ranks in 1 2; do
    on "$ranks" 30 "all-reduce" tests/runtime_gpu_test \
      --gtest_filter='*AllReduceOfEveryType/Default'
  done
fi

if part 3 150 "Training, beside the CPU"; then
  for ranks in 1 2; do
    for mode in none full; do trains "$ranks" --shard "$mode"; done
  done
fi

if part 4 150 "Speed of one rank"; then
  lines=30 on 1 70 "train_gpt --efficiency" examples/train_gpt --preset medium --device cuda \
    --steps 100 --text "$root/docs" --efficiency
  bench 1 40 "cost of a call" allreduce --max 64KB
  bench 1 60 "the gradients of ResNet-50" gradients --model resnet50
fi

if part 5 150 "Kernels, compute-sanitizer"; then
  lines=40 step 60 "bandwidth of the pack kernel" "$folder/tests/convert_bandwidth"
  with_gpu 120 "compute-sanitizer, kernels" compute-sanitizer --error-exitcode 1 \
    "$folder/tests/cuda_gpu_test" \
    --gtest_filter='*ConvertsAsTheCpuDoes:*AddsUpVectorsInOrder:*Fills*'
  with_gpu 60 "compute-sanitizer, NCCL with one rank" compute-sanitizer --error-exitcode 1 \
    --report-api-errors no "$folder/tests/nccl_test" \
    --gtest_filter='*CollectivesOfOneRankAreCopies'
fi

if part 6 1800 "Every test, mode and cast"; then
  step 300 "thread_gpu_test, up to 8 ranks on one GPU" "$folder/tests/thread_gpu_test"
  cases='ThreadCommunicatorTest.*/2:AllReduceTest.*/Gpu*Np3:DeviceTest.*/2'
  with_gpu 300 "compute-sanitizer, ranks as threads" compute-sanitizer --error-exitcode 1 \
    --report-api-errors no "$folder/tests/thread_gpu_test" \
    --gtest_filter="$cases-*OrderedByStreamsAlone*"
  step 300 "cuda_gpu_test, long cases" "$folder/tests/cuda_gpu_test" --gtest_filter="$long"
  for ranks in 1 2 4; do
    on "$ranks" 300 "runtime_gpu_test" tests/runtime_gpu_test --gtest_filter="-$late"
  done
  for ranks in 1 2; do
    for mode in optimizer gradients; do trains "$ranks" --shard "$mode"; done
  done
  for cast in fp16 bf16; do trains 2 --compression "$cast"; done
fi

if part 7 900 "Process sets, held operations"; then
  for ranks in 1 2 4; do
    on "$ranks" 300 "process sets, held operations" tests/runtime_gpu_test --gtest_filter="$late"
  done
fi

if part 8 1800 "Speed of ranks that share the GPU, and of large tensors"; then
  for ranks in 1 2; do
    for algo in ring auto; do
      KOLO_NCCL_ALGO="$algo" bench "$ranks" 300 "Kolo by $algo, NCCL by ring and auto" allreduce \
        --max 256MB
    done
  done
  # Kolo's communicator does not block, for which NCCL starts a thread in each call; theirs does.
  for group in 1 16; do
    bench 2 180 "latency, groups of $group small tensors" allreduce --max 4KB --group "$group"
  done
  lines=60 on 2 300 "NCCL in Kolo's own processes" examples/kolo-bench allreduce --device cuda \
    --baseline nccl --max 1MB
  lines=30 on 1 300 "synthetic_benchmark --efficiency" examples/synthetic_benchmark \
    --device cuda --efficiency
fi

say ""
say "passed $passed, failed $failed, need a GPU $skipped; all output in $logs"
tar -C "$logs" --exclude=./logs.tgz -czf - . > "$logs.tgz" && mv "$logs.tgz" "$logs/logs.tgz"
[ "$failed" -eq 0 ]
