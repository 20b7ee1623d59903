#!/usr/bin/env bash
# Packs the programs that tests/gpu/first_hour.sh runs, for a machine that has a GPU, LibTorch and
# NCCL as Python packages, and nothing else: perhaps no MPI, no compiler, no network.
#   tests/gpu/bundle.sh ARCHIVE.tar.gz [FOLDER]
# FOLDER is a build for CUDA (build/cuda): cmake/setup.sh --cuda, then
#   cmake --preset cuda && cmake --build --preset cuda --target nccl_test cuda_gpu_test \
#     thread_gpu_test runtime_gpu_test convert_bandwidth train_gpt synthetic_benchmark \
#     kolo-bench kolo-bench-mpi
# There: unpack it anywhere, then tests/gpu/first_hour.sh --folder .../kolo. The archive carries
# this machine's Open MPI, which its `env` puts where Open MPI looks for itself: that needs root.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
archive="${1:?usage: tests/gpu/bundle.sh ARCHIVE.tar.gz [FOLDER]}"
folder="${2:-$root/build/cuda}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
kolo="$work/kolo"
mkdir -p "$kolo/tests" "$kolo/examples" "$kolo/mpi"

for program in tests/{nccl_test,cuda_gpu_test,thread_gpu_test,runtime_gpu_test,convert_bandwidth} \
  examples/{train_gpt,synthetic_benchmark,kolo-bench,kolo-bench-mpi}; do
  strip -o "$kolo/$program" "$folder/$program"
done

# Libraries that a machine with LibTorch lacks.
mkdir "$kolo/lib"
objdump -p "$kolo"/tests/* "$kolo"/examples/* |
  sed -nE 's/^ +NEEDED +(lib.*)$/\1/p' | sort -u |
  grep -vE '^lib(c|m|gcc_s|stdc\+\+|mpi|open-.*|nccl|cudart|torch.*|c10.*)\.so' |
  while read -r library; do
    found="$(ldconfig -p | sed -nE "s|^\s*$library .* => (.*)|\1|p" | head -n 1)"
    cp -L "$found" "$kolo/lib/$library"
  done

# Open MPI as it lies here: the launcher, plugins, help texts, and the libraries that neither a
# minimal system nor LibTorch has. Plugins for networks and batch systems are left out, with what
# they need.
lib="/usr/lib/$(uname -m)-linux-gnu"
copy() { (cd / && tar -chf - "${@#/}") | tar -C "$kolo/mpi" -xf -; }
copy /usr/bin/orterun /usr/share/openmpi /etc/openmpi "$lib/pmix2/lib/pmix"
mkdir "$kolo/mpi/share"
plugins=()
for plugin in "$lib"/openmpi/lib/openmpi3/*.so; do
  case "$plugin" in
    *_ofi.so | *_ucx.so | *_psm*.so | *_openib.so | *_usnic.so | *_slurm.so | *_portals4.so | \
      *_hcoll.so | *_fs_*.so | *_lustre.so | *_gridengine.so | *_tm.so | *_rdma*.so | *_java.so) ;;
    *) plugins+=("$plugin") ;;
  esac
done
copy "${plugins[@]}"
rmdir "$kolo/mpi/share"
ldd "$kolo"/tests/* "$kolo"/examples/* "$kolo/mpi/usr/bin/orterun" "${plugins[@]}" \
  "$lib"/pmix2/lib/pmix/*.so 2> /dev/null |
  sed -nE 's/^\s*\S+ => (\/(usr\/)?lib\/\S+) .*/\1/p' | sort -u |
  grep -vE '/ld-linux|/lib(c|m|dl|rt|pthread|resolv|util|gcc_s|stdc\+\+|nccl|cuda|cudart)\.so' |
  while read -r library; do
    # By the name under which it is looked for.
    mkdir -p "$kolo/mpi$lib"
    cp -L "$library" "$kolo/mpi$lib/${library##*/}"
  done

cat > "$kolo/env" << 'ENV'
# shellcheck shell=bash
# Sourced by first_hour.sh: finds LibTorch, and installs Open MPI unless the machine has one, which
# must then be Open MPI too.
kolo_bundle="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
if ! command -v mpirun > /dev/null; then
  tar -C "$kolo_bundle/mpi" -cf - . | tar -C / --skip-old-files -xf -
  ln -sf orterun /usr/bin/mpirun
  ldconfig
fi
kolo_site="$(python3 -c 'import importlib.util as util
print(util.find_spec("torch").submodule_search_locations[0])')/.."
LD_LIBRARY_PATH="$kolo_bundle/lib:$kolo_site/torch/lib:${LD_LIBRARY_PATH:-}"
for kolo_library in "$kolo_site"/nvidia/*/lib; do
  LD_LIBRARY_PATH="$kolo_library:$LD_LIBRARY_PATH"
done
export LD_LIBRARY_PATH
export OMPI_MCA_plm=isolated OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,vader,tcp # no ssh, no fast network
ENV
tar -C "$work" -caf "$archive" kolo
ls -l "$archive"
