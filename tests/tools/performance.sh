#!/usr/bin/env bash
# Measures what docs/performance.md says and prints that page, for this machine and this commit:
#   tests/tools/performance.sh > docs/performance.md
# Takes some 25 minutes on two cores, which should have nothing else to do.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
if [ $# -gt 0 ]; then
  sed -n '2,4s/^# //p' "${BASH_SOURCE[0]}"
  [ "$1" = --help ] && exit 0 || exit 2
fi
"$root/cmake/setup.sh" >&2
# shellcheck source=cmake/environment.sh
. "$root/cmake/environment.sh"
kolo_build release kolo-bench train_gpt synthetic_benchmark shard_benchmark >&2

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
  # shard_benchmark ends with 1 where a promise on memory is not kept; the page has the figures.
  "$@" --json "$results/$name.json" >&2 || [ -s "$results/$name.json" ]
}

kolo-bench --selfcheck >"$results/selfcheck.txt"
staged_and_window=(--placement staged,window --baseline mpi)
measure allreduce kolo-bench allreduce --np 2 --min 1KB --max 256MB --factor 8 \
  "${staged_and_window[@]}"
measure path kolo-bench allreduce --np 2 --min 1KB --max 16MB --factor 8 --rounds 31 \
  --placement staged,window
measure gradients kolo-bench gradients --model resnet50 --np 2 --baseline mpi \
  --compression none,fp16
for collective in reduce_scatter allgather broadcast alltoall; do
  measure "$collective" kolo-bench "$collective" --np 2 --min 64KB --max 64MB --factor 32 \
    "${staged_and_window[@]}"
done
measure four_ranks kolo-bench allreduce --np 4 --min 1KB --max 4MB --factor 8 \
  "${staged_and_window[@]}"

for shard in none optimizer gradients; do
  for fused in "" --fused; do
    measure "gpt.$shard.${fused#--}" \
      mpirun -np 2 train_gpt --preset medium --efficiency --shard "$shard" ${fused:+"$fused"}
    measure "resnet.$shard.${fused#--}" \
      mpirun -np 2 synthetic_benchmark --image 64 --batch 8 --efficiency --shard "$shard" \
      ${fused:+"$fused"}
  done
done
measure modes mpirun -np 2 shard_benchmark
for shard in none optimizer gradients; do
  measure "memory.$shard" mpirun -np 4 --oversubscribe shard_benchmark --memory --shard "$shard"
done
for shard in none gradients; do
  measure "saving.$shard" mpirun -np 2 shard_benchmark --checkpoint "$results/saved" \
    --shard "$shard"
done

python3 "$root/tests/tools/performance/page.py" "$results" "$root"
