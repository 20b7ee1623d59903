# shellcheck shell=bash
# Sourced by the scripts: where this user's part of the set-up lies, the PATH to its tools, and how
# to build.

kolo_cache="${XDG_CACHE_HOME:-${HOME:?is not set; it holds the cache .cache/kolo}/.cache}/kolo"
kolo_tools="$kolo_cache/tools"
kolo_python="$kolo_cache/python" # packages with which tests read checkpoints

for kolo_tool in cmake ninja mpirun; do
  if [ -x "$kolo_tools/bin/$kolo_tool" ]; then
    PATH="$kolo_tools/bin:$PATH"
    break
  fi
done

# Open MPI refuses to run as root without these.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# kolo_build <preset> [-D<variable>=<value>...] [<target>...]
kolo_build() (
  preset="$1"
  shift
  settings=()
  while [[ "${1:-}" == -D* ]]; do
    settings+=("$1")
    shift
  done
  cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
  if ! log="$(cmake --preset "$preset" "${settings[@]}" 2>&1)"; then
    printf '%s\n' "$log" >&2
    exit 1
  fi
  printf '%s\n' "$log" | grep -e '-- Kolo:'
  cmake --build --preset "$preset" --parallel "$(nproc)" "${@/#/--target=}"
)
