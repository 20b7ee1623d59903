#!/usr/bin/env bash
# Measures the figures of docs/performance.md and prints that page, for this machine and commit:
#   tests/tools/performance.sh > docs/performance.md
# Takes about 40 minutes on two cores, which should otherwise be idle. With the first words of
# headings it measures and prints only these sections, each with the commit:
#   tests/tools/performance.sh Training Sharding
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
sections=(All-reduce Gradients Other More Training Sharding Memory Saving)
for section in "$@"; do
  [[ " ${sections[*]} " == *" $section "* ]] && continue
  sed -n '2,6s/^# //p' "${BASH_SOURCE[0]}"
  printf 'Sections: %s\n' "${sections[*]}"
  [ "$section" = --help ] && exit 0 || exit 2
done
[ $# -eq 0 ] || sections=("$@")
"$root/cmake/setup.sh" >&2
# shellcheck source=cmake/environment.sh
. "$root/cmake/environment.sh"
kolo_build release kolo-bench train_gpt synthetic_benchmark shard_benchmark compare_sharding >&2

PATH="$root/build/release/examples:$PATH"
export OMP_NUM_THREADS=1 # each rank has one core
results="$(mktemp -d)"
trap 'rm -rf "$results"' EXIT

# measure <name> <command>...: keeps the JSON that the command writes and the command itself.
measure() {
  local name="$1"
  shift
  printf '%s  %s\n' "$(date +%T)" "$*" >&2
  printf '%s\n' "$*" >"$results/$name.command"
  # shard_benchmark exits with 1 if it misses a bound; the page shows the figures.
  "$@" --json "$results/$name.json" >&2 || [ -s "$results/$name.json" ]
}

# in_mode <mode> <name> <arguments of mpirun, and a program>...: measures it with --shard.
in_mode() {
  local mode="$1" name="$2"
  shift 2
  case "$mode" in
    gathered) measure "$name" env KOLO_SHARED_MEMORY=off mpirun "$@" --shard full ;;
    *) measure "$name" mpirun "$@" --shard "$mode" ;;
  esac
}
modes=(none optimizer gradients full gathered)

measure_All-reduce() {
  measure allreduce kolo-bench allreduce --np 2 --min 1KB --max 256MB --factor 8 \
    "${staged_and_window[@]}"
}

measure_Gradients() {
  measure gradients kolo-bench gradients --model resnet50 --np 2 --baseline mpi \
    --compression none,fp16
}

measure_Other() {
  local collective
  for collective in reduce_scatter allgather broadcast alltoall; do
    measure "$collective" kolo-bench "$collective" --np 2 --min 64KB --max 64MB --factor 32 \
      "${staged_and_window[@]}"
  done
}

measure_More() {
  measure four_ranks kolo-bench allreduce --np 4 --min 1KB --max 4MB --factor 8 \
    "${staged_and_window[@]}"
}

measure_Training() {
  local mode fused
  for mode in "${modes[@]}"; do
    for fused in "" --fused; do
      in_mode "$mode" "gpt.$mode.${fused#--}" \
        -np 2 train_gpt --preset medium --efficiency ${fused:+"$fused"}
      in_mode "$mode" "resnet.$mode.${fused#--}" \
        -np 2 synthetic_benchmark --image 64 --batch 8 --efficiency ${fused:+"$fused"}
    done
  done
}

measure_Sharding() {
  measure modes mpirun -np 2 shard_benchmark
  measure gathered env KOLO_SHARED_MEMORY=off mpirun -np 2 shard_benchmark
  measure watch mpirun -np 2 shard_benchmark --watch --rounds 101
  measure models mpirun -np 2 compare_sharding
  measure models_gathered env KOLO_SHARED_MEMORY=off mpirun -np 2 compare_sharding
}

measure_Memory() {
  local mode
  for mode in "${modes[@]}"; do
    in_mode "$mode" "memory.$mode" -np 4 --oversubscribe shard_benchmark --memory
  done
}

measure_Saving() {
  local mode
  for mode in none gradients full; do
    in_mode "$mode" "saving.$mode" -np 2 shard_benchmark --checkpoint "$results/saved"
  done
}

staged_and_window=(--placement "staged,window" --baseline mpi)
cat /proc/loadavg >"$results/load.txt"
kolo-bench --selfcheck >"$results/selfcheck.txt"
for section in "${sections[@]}"; do "measure_$section"; done

python3 "$root/tests/tools/performance/page.py" "$results" "$root" "$@"
