# shellcheck shell=bash
# Sourced after libtorch.sh, by setup.sh and by the scripts that run on GPUs: detects a GPU, and
# installs a LibTorch with its CUDA part and the matching toolkit.

oldest_driver=580 # for CUDA 13
cuda_torch_dir="$kolo_cache/libtorch-$torch_version-cuda"
cuda_free_mib_needed=8192

# Says what is missing, and returns 1, unless this machine has a GPU that this CUDA can use.
has_gpu() {
  local said="there is no nvidia-smi" version
  if command -v nvidia-smi >/dev/null; then
    said="$(nvidia-smi -L 2>&1)" || said="${said:-nvidia-smi failed}"
  fi
  if [[ "$said" != GPU* ]]; then
    printf '%s\n' "no NVIDIA GPU with its driver here: $said" \
      "The driver, $oldest_driver or newer, is all that has to be installed beforehand." >&2
    return 1
  fi
  version="$(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1)"
  if [ "${version%%.*}" -lt "$oldest_driver" ]; then
    printf '%s\n' "the driver here is $version: CUDA $cuda_series needs $oldest_driver or newer" >&2
    return 1
  fi
}

# Prints the number of GPUs that a program would see, for one rank on each.
count_gpus() {
  if [ -n "${CUDA_VISIBLE_DEVICES:-}" ]; then
    printf '%s\n' "$CUDA_VISIBLE_DEVICES" | tr ',' '\n' | grep -c .
  else
    nvidia-smi -L | grep -c '^GPU'
  fi
}

# wants_gpu <argument>...: whether a program with these would run on GPUs.
wants_gpu() {
  case " $* " in *" --device cuda "* | *" --device=cuda "*) return 0 ;; esac
  return 1
}

has_cuda_torch() { [ -e "$cuda_torch_dir/complete" ]; }

# Prints pip's requirements, one per line: the NVIDIA libraries that the torch wheel in folder $1
# names, in the same versions, and what compiles for them.
cuda_requirements() {
  "$kolo_tools/bin/python3" - "$1" <<'PYTHON'
import pathlib, re, sys, zipfile

wheel, = pathlib.Path(sys.argv[1]).glob("torch-*.whl")
with zipfile.ZipFile(wheel) as archive:
    name, = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    text = archive.read(name).decode()
for line in re.findall(r"^Requires-Dist: ((?:nvidia-|cuda-toolkit\[)[^;\n]+)", text, re.M):
    print(re.sub(r"^(cuda-toolkit\[[^]]*)", r"\1,cccl,crt,nvcc,nvvm", line.strip()))
PYTHON
}

# Links the libraries in $1 to the names under which compilers and CMake look for them.
link_cuda_libraries() {
  "$kolo_tools/bin/python3" - "$1" <<'PYTHON'
import pathlib, re, sys

unpacked = pathlib.Path(sys.argv[1])
toolkit, = unpacked.glob("nvidia/cu[0-9]*")
for program in [*toolkit.glob("bin/*"), *toolkit.glob("nvvm/bin/*")]:
    program.chmod(0o755)
(toolkit / "lib64").symlink_to("lib")  # where nvcc looks
(toolkit / "include/nccl.h").symlink_to("../../nccl/include/nccl.h")
(toolkit / "lib/libnccl.so.2").symlink_to("../../nccl/lib/libnccl.so.2")
for library in sorted(toolkit.glob("lib/*.so.*")):
    plain = library.with_name(re.sub(r"\.so\..*", ".so", library.name))
    if not plain.exists():
        plain.symlink_to(library.name)
PYTHON
}

# Like install_torch.
install_cuda_torch() {
  local partial="$kolo_cache/partial-libtorch-cuda" requirements
  if [ -e "$partial" ] || [ -e "$cuda_torch_dir" ]; then
    say "an earlier download of LibTorch for CUDA was interrupted: starting it again"
    rm -rf "$partial" "$cuda_torch_dir"
  fi
  say "downloading LibTorch $torch_version, CUDA $cuda_series and NCCL (about 2.5 GB) into" \
    "$cuda_torch_dir"
  require_room "$cuda_free_mib_needed"
  mkdir "$partial"
  download_torch_wheel "$partial"
  requirements="$(cuda_requirements "$partial")"
  [ -n "$requirements" ] || fail "the wheel of torch $torch_version names no library of NVIDIA's"
  # In the versions that the wheel of torch names, whose hash was checked; theirs are not.
  # shellcheck disable=SC2086
  download_wheels "$partial" $requirements
  say "unpacking"
  unpack_wheels "$partial" "(?!)" "" # all libraries of both
  link_cuda_libraries "$partial/unpacked"
  touch "$partial/unpacked/complete"
  mv "$partial/unpacked" "$cuda_torch_dir"
  rm -rf "$partial"
}
