# shellcheck shell=bash
# Sourced by setup.sh, whose functions it uses: installs what the test command can do without: what
# builds faster, Clang for .ci/run, and what single tests need, which are skipped without it: UCX,
# Python packages that read checkpoints, linters, and another MPI.

format_version=20.1.8 # tests/format_test.py has it too
tidy_version=22.1.8   # tests/lint_test.py has it too
mpich_version=5.0.2   # tests/mpi/mpich.cmake has it too
mpich_folder="$kolo_cache/mpi/mpich-$mpich_version"

# --- compiler cache, linker, Clang, UCX --------------------------------------------------------

build_tools=(ccache mold clang libucx-dev)
without_build_tools="ccache and mold only save time, clang is for .ci/run, \
libucx-dev connects hosts without MPI"

has_build_tool() {
  if [ "$1" = libucx-dev ]; then has_header ucp/api/ucp.h; else has_command "$1"; fi
}

has_build_tools() {
  local tool
  for tool in "${build_tools[@]}"; do has_build_tool "$tool" || return 1; done
}

# Never fails: the test command needs none. One by one, since not every distribution has mold.
install_build_tools() {
  local tool
  for tool in "${build_tools[@]}"; do
    if has_build_tool "$tool" || { can_use_apt && install_with_apt "$tool|-|$tool|-"; }; then
      continue
    fi
    say "$tool is missing; $without_build_tools"
  done
}

report_build_tools() {
  local tool
  for tool in "${build_tools[@]}"; do
    if has_build_tool "$tool"; then
      printf '%-20s found\n' "$tool"
    else
      printf '%-20s missing (apt: %s); %s\n' "$tool" "$tool" "$without_build_tools"
    fi
  done
}

# --- Python packages ---------------------------------------------------------------------------

# Prints the Python that reads safetensors, if any.
test_python() {
  local python
  for python in python3 "$kolo_python/bin/python3"; do
    if "$python" -c 'import numpy, safetensors' 2>/dev/null; then
      printf '%s\n' "$python"
      return
    fi
  done
}

# Never fails: only one test needs it.
install_test_python() {
  say "installing safetensors and NumPy from PyPI into $kolo_python"
  python3 -m venv --clear "$kolo_python" >/dev/null &&
    "$kolo_python/bin/python3" -m pip --quiet --disable-pip-version-check \
      install --retries 1 --timeout 10 safetensors numpy </dev/null && return
  say "that failed; the test checkpoint_python.package will be skipped"
}

report_packages() {
  if [ -n "$(test_python)" ]; then
    printf '%-20s found in %s\n' safetensors "$(test_python)"
  else
    printf '%-20s missing (PyPI: safetensors numpy); for one test only\n' safetensors
  fi
}

# --- linters -----------------------------------------------------------------------------------

# has_linter <program> <version>
has_linter() {
  [ -x "$kolo_tools/bin/$1" ] && "$kolo_tools/bin/$1" --version | grep -qF "version $2"
}

has_linters() {
  has_linter clang-format "$format_version" && has_linter clang-tidy "$tidy_version"
}

# Never fails: only two tests need them.
install_linters() {
  say "installing clang-format and clang-tidy from PyPI into $kolo_tools"
  pip install --retries 1 --timeout 10 --no-deps --require-hashes --requirement \
    <(hashed "clang-format==$format_version" "clang-tidy==$tidy_version") && return
  say "that failed; the tests format and lint will be skipped"
}

report_linters() {
  local state=missing
  if has_linters; then state="found in $kolo_tools"; fi
  printf '%-20s %s (PyPI: clang-format %s, clang-tidy %s); for two tests only\n' \
    linters "$state" "$format_version" "$tidy_version"
}

# --- another MPI -------------------------------------------------------------------------------

has_mpich() { [ -x "$mpich_folder/bin/mpiexec" ]; }

# Never fails: only one test needs it.
install_mpich() {
  say "installing MPICH from PyPI into $mpich_folder"
  python3 -m venv --clear "$mpich_folder" >/dev/null &&
    "$mpich_folder/bin/python3" -m pip --quiet --disable-pip-version-check \
      install --retries 1 --timeout 10 --no-deps --require-hashes \
      --requirement <(hashed "mpich==$mpich_version") </dev/null && return
  say "that failed; the test runtime_mpich_test.np3 will be skipped"
}

report_mpich() {
  local state=missing
  if has_mpich; then state="found in $mpich_folder"; fi
  printf '%-20s %s (PyPI: mpich %s); for one test only\n' MPICH "$state" "$mpich_version"
}
