# shellcheck shell=bash
# Sourced by setup.sh, whose functions it uses: finds LibTorch, or fetches it.

torch_version=2.11.0
cuda_series=13.0 # of the CUDA runtime that this LibTorch was built with
cuda_runtime=13.0.96
cuda_cupti=13.0.85
wheels="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/wheels.txt"
torch_dir="$kolo_cache/libtorch-$torch_version"
free_mib_needed=2048

# Prints the LibTorch that the user named, if any. PyTorch's own torch.utils.cmake_prefix_path is
# the folder share/cmake in it.
named_torch() {
  local prefix place
  if [ -n "${Torch_DIR:-}" ] && [ ! -e "$Torch_DIR/../../../lib/libtorch_cpu.so" ]; then
    fail "Torch_DIR=$Torch_DIR is not the folder share/cmake/Torch of a LibTorch:" \
      "it has no ../../../lib/libtorch_cpu.so"
  fi
  while IFS= read -r prefix; do
    for place in "$prefix" "$prefix/../.."; do
      if [ -n "$prefix" ] && [ -e "$place/lib/libtorch_cpu.so" ]; then
        (cd "$place" && pwd)
        return
      fi
    done
  done < <(printf '%s\n' "${Torch_DIR:+$Torch_DIR/../../..}" && named_prefixes)
}

# Prints the same if it has a part for CUDA.
named_cuda_torch() {
  local torch
  torch="$(named_torch)"
  if [ -e "$torch/lib/libtorch_cuda.so" ]; then printf '%s\n' "$torch"; fi
}

# Unpacks the wheels $1/*.whl into $1/unpacked, and removes them. Regular expressions: $2 of those of
# PyTorch's libraries that are left out, $3 of NVIDIA's files that are taken; by default what a C++
# program on the CPU needs.
unpack_wheels() {
  local cpu_without="torch|torch_cuda.*|torch_nvshmem|c10_cuda|caffe2_nvrtc"
  local cpu_with="[^/]+/lib/lib(cudart|cupti)\.so"
  "$kolo_tools/bin/python3" - "$1" "${2-$cpu_without}" "${3-$cpu_with}" <<'PYTHON'
import pathlib, re, sys, zipfile

folder = pathlib.Path(sys.argv[1])
without, nvidia = sys.argv[2:]
wanted = re.compile(
    r"torch/include/"
    rf"|torch/lib/(?!lib({without}|torch_python|torch_global_deps|shm)\.so)[^/]+\.so"
    rf"|torch\.libs/|nvidia/({nvidia})"
    r"|[^/]+\.dist-info/.*(LICENSE|NOTICE|METADATA)")
for wheel in folder.glob("*.whl"):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "unpacked", filter(wanted.match, archive.namelist()))
    wheel.unlink()
PYTHON
}

has_torch() { [ -e "$torch_dir/complete" ]; }

# require_room <MiB>
require_room() {
  local free_mib
  free_mib="$(df -Pm "$kolo_cache" | awk 'NR == 2 { print $4 }')"
  [ "$free_mib" -ge "$1" ] || fail "$kolo_cache has $free_mib MiB free, $1 are needed"
}

# Prints the lines of wheels.txt for packages, such as torch==2.11.0, whose files pip then checks.
hashed() {
  local package
  for package in "$@"; do
    grep -F -- "$package " "$wheels" || say "$wheels has no hashes of $package" >&2
  done
}

# download_wheels <folder> <requirement>...
download_wheels() {
  local folder="$1"
  shift
  TMPDIR="$folder" pip download --no-cache-dir --only-binary=:all: --dest "$folder" "$@"
}

# download_torch_wheel <folder>: always the wheel for one fixed Python, whatever Python this machine
# has, since only the C++ part is used.
download_torch_wheel() {
  local platform=() tag
  for tag in 2_28 2_27 2_24 2_17; do platform+=(--platform "manylinux_${tag}_$(uname -m)"); done
  download_wheels "$1" --no-deps "${platform[@]}" --python-version 3.11 --implementation cp \
    --abi cp311 --require-hashes --requirement <(hashed "torch==$torch_version")
}

# Works in a temporary folder, which is renamed when it is complete.
install_torch() {
  local partial="$kolo_cache/partial-libtorch"
  if [ -e "$partial" ] || [ -e "$torch_dir" ]; then
    say "an earlier download of LibTorch was interrupted: starting it again"
    rm -rf "$partial" "$torch_dir"
  fi
  say "downloading LibTorch $torch_version (about 550 MB) into $torch_dir"
  require_room "$free_mib_needed"
  mkdir "$partial"
  download_torch_wheel "$partial"
  download_wheels "$partial" --no-deps --require-hashes \
    --requirement <(hashed "nvidia-cuda-runtime==$cuda_runtime" "nvidia-cuda-cupti==$cuda_cupti")
  say "unpacking"
  unpack_wheels "$partial"
  touch "$partial/unpacked/complete"
  mv "$partial/unpacked" "$torch_dir"
  rm -rf "$partial"
}
