#!/usr/bin/env bash
# Builds Debian packages, installs them into an empty root of the same Debian, and builds and runs a
# project there, independent of the host:
#   tests/tools/debian_package.sh [<folder to work in>]
# Needs root, debootstrap, dpkg-dev and a Debian mirror. LibTorch has no package and is mounted.
set -euo pipefail

source="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
# shellcheck source=cmake/environment.sh
. "$source/cmake/environment.sh"
folder="${1:-$source/build/debian}"
container="$folder/root"

rm -rf "$folder/packages" "$container/packages" # of another version
cmake --preset package -S "$source"
cmake --build --preset package
(cd "$source/build/package" && cpack -G DEB -B "$folder/packages")

if [ ! -x "$container/usr/bin/apt-get" ]; then
  debootstrap --variant=minbase "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$container"
fi
libtorch="$(sed -n 's/^LibTorch_ROOT:PATH=//p' "$source/build/package/CMakeCache.txt")"
mounts=("$container/opt/libtorch" "$container/proc" "$container/dev/shm")
unmount() {
  for mount in "${mounts[@]}"; do
    if mountpoint -q "$mount"; then umount "$mount"; fi
  done
}
trap unmount EXIT
unmount
mkdir -p "${mounts[@]}" "$container/packages"
mount --bind -o ro "$libtorch" "$container/opt/libtorch"
mount -t proc proc "$container/proc"
mount -t tmpfs tmpfs "$container/dev/shm"
# The CUDA libraries that LibTorch needs even on a CPU have no Debian package either.
mkdir -p "$container/opt/cuda"
ldd "$libtorch/lib/libtorch_cpu.so" | awk '$3 ~ /^\// && $3 !~ /^\/(usr\/)?lib\// { print $3 }' |
  xargs readlink --canonicalize | { grep -v "^$libtorch/" || true; } |
  xargs --no-run-if-empty cp --target-directory="$container/opt/cuda"
cp "$folder"/packages/*.deb "$container/packages"
cp -r "$source/tests/install/consumer" "$container/packages"

cat >"$container/packages/try.sh" <<'EOF'
set -eux
export DEBIAN_FRONTEND=noninteractive
apt-get install -y --no-install-recommends /packages/*.deb
apt-get install -y --no-install-recommends g++ cmake make pkg-config openmpi-bin openssh-client
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 LD_LIBRARY_PATH=/opt/cuda
cmake -S /packages/consumer -B /tmp/consumer -DCONSUMER_LEVELS='core;kolo' \
  -DCMAKE_PREFIX_PATH=/opt/libtorch -DCMAKE_EXE_LINKER_FLAGS=-Wl,-rpath-link,/opt/cuda
cmake --build /tmp/consumer
cd /tmp/consumer
ctest --output-on-failure --no-tests=error
c++ -std=c++20 /packages/consumer/core.cpp -o by_pkg_config $(pkg-config --cflags --libs kolo-core)
./by_pkg_config
kolo-bench --np 2 --baseline mpi --max 1KB --rounds 1
EOF
chroot "$container" sh /packages/try.sh
echo "The packages install and work in an empty $(. /etc/os-release && echo "$PRETTY_NAME")."
