#!/usr/bin/env bash
# Builds Kolo with another LibTorch from PyPI, and tests the training layer on it:
#   tests/tools/other_torch.sh 2.6.0|2.15.0|... [<regular expression of tests>]
# Changes nothing outside the cache folder and build/. Before 2.7, LibTorch's wheels use the old ABI
# of libstdc++; GoogleTest is then built with that ABI, too, from Debian's libgtest-dev.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
# shellcheck source=cmake/environment.sh
. "$root/cmake/environment.sh"
# shellcheck source=cmake/libtorch.sh
. "$root/cmake/libtorch.sh"

version="${1:-}"
usual="train_test.(np2|alone|uneven)|gradients_test.np|checkpoint_test"
tests="${2:-$usual|example.(Hello|Wrap|Pretr)}"
if [[ ! "$version" =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]]; then
  echo "usage: $0 <version of torch> [<regular expression of tests>]" >&2
  exit 2
fi

# The libraries of CUDA that the wheel's CPU part is linked with, as pip's requirements.
cuda_requirements() {
  unzip -p "$1"/torch-*.whl 'torch-*.dist-info/METADATA' | python3 -c '
import re, sys
text = sys.stdin.read()
found = re.findall(r"^Requires-Dist: (nvidia-cuda-(?:runtime|cupti)-cu\d+) \(?==([\d.]+)", text,
                   re.M)
toolkit = re.search(r"^Requires-Dist: cuda-toolkit.*==(\d+\.\d+)", text, re.M)
if toolkit and not found:
    found = [(f"nvidia-cuda-{name}", toolkit[1] + ".*") for name in ("runtime", "cupti")]
print(*(f"{name}=={number}" for name, number in found))'
}

folder="$kolo_cache/other/libtorch-$version" # where no other build looks for it
if [ ! -e "$folder/complete" ]; then
  partial="$kolo_cache/other/partial-libtorch-$version"
  rm -rf "$partial" "$folder"
  mkdir -p "$partial"
  platforms=()
  for tag in manylinux_2_28 manylinux_2_27 manylinux_2_17 manylinux1; do
    platforms+=(--platform "${tag}_$(uname -m)")
  done
  get=(pip download --quiet --no-deps --no-cache-dir --only-binary=:all: --dest "$partial")
  TMPDIR="$partial" "${get[@]}" "${platforms[@]}" --python-version 3.11 --implementation cp \
    --abi cp311 "torch==$version"
  # shellcheck disable=SC2046
  TMPDIR="$partial" "${get[@]}" $(cuda_requirements "$partial")
  unpack_wheels "$partial"
  touch "$partial/unpacked/complete"
  mv "$partial/unpacked" "$folder"
  rm -rf "$partial"
fi

prefixes="$folder/torch"
flags=""
if ! nm --dynamic "$folder/torch/lib/libc10.so" | grep 'torchCheckFail.*cxx11' >/dev/null; then
  flags="-D_GLIBCXX_USE_CXX11_ABI=0"
  googletest="$kolo_cache/other/googletest-old-abi"
  if [ ! -e "$googletest/lib" ]; then
    cmake -S /usr/src/googletest -B "$googletest/build" -DCMAKE_CXX_FLAGS="$flags" \
      -DCMAKE_INSTALL_PREFIX="$googletest" -DCMAKE_INSTALL_LIBDIR=lib >/dev/null
    cmake --build "$googletest/build" --parallel "$(nproc)" --target install >/dev/null
  fi
  prefixes="$googletest;$prefixes"
fi

build="$root/build/torch-$version"
cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_UNITY_BUILD=ON \
  -DCMAKE_CXX_FLAGS="$flags" -DKOLO_WITH_CUDA=OFF -DCMAKE_PREFIX_PATH="$prefixes" |
  grep -e '-- Kolo:'
if ! log="$(cmake --build "$build" --parallel "$(nproc)" \
  --target train_test gradients_test checkpoint_test examples/all)"; then
  printf '%s\n' "$log" >&2
  exit 1
fi
cd "$build"
ctest --output-on-failure -R "$tests"
