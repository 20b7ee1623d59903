#!/usr/bin/env bash
# Builds shared libraries and archives of them, unpacks these into an empty folder, and builds a
# separate project there with CMake and with pkg-config:
#   tests/install/packages.sh <build folder> [<settings for CMake>...]
# All objects are in the compiler cache if <build folder> is as deep as an earlier one with these
# settings.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
folder="$1"
shift

cmake -S "$root" -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_UNITY_BUILD=ON \
  -DBUILD_SHARED_LIBS=ON -DKOLO_BUILD_TESTS=OFF -DKOLO_BUILD_EXAMPLES=OFF "$@"
cmake --build "$folder"
rm -rf "$folder/packages" "$folder/installed"
(cd "$folder" && cpack -G TGZ -B "$folder/packages")
with_torch='include/kolo/(torch/|extras/|kolo\.hpp)'
if tar -tf "$folder"/packages/*-core.tar.gz | grep -E "$with_torch"; then
  echo "the core's archive has headers that need LibTorch" >&2
  exit 1
fi
mkdir "$folder/installed"
for archive in "$folder"/packages/*.tar.gz; do
  tar -C "$folder/installed" --strip-components=1 -xf "$archive"
done

echo "== what the libraries export =="
for library in "$folder"/installed/lib/libkolo*.so; do
  readelf --dynamic "$library" | grep 'SONAME.*\.so\.[0-9]*\.[0-9]*\]'
  # libkolo.so uses the core's helpers: submitting operations, mapping memory, freeing GPUs, looking
  # up codecs, cutting pieces, copying on GPUs, recording what a step does. Template instances are
  # weak symbols.
  if nm --dynamic --demangle --defined-only "$library" |
    grep -E '^[0-9a-f]+ [TDBR] kolo::(comm|compression|insight|ops|runtime)::' |
    grep -vE ' kolo::(runtime::[a-z_]+(\[abi:cxx11\])?\(|comm::(page_bytes|JoinedMapping))' |
    grep -vE ' kolo::runtime::(Engine::(gpu|adds_in_rank_order)|SetContext::check)\(' |
    grep -vE ' kolo::insight::Recorder::' |
    grep -vE ' kolo::comm::set_release_of_cached_memory\(' |
    grep -vE ' kolo::(compression::Registry::find_codec\(|ops::NodePlaces::)'; then
    echo "$library exports internals" >&2
    exit 1
  fi
done

echo "== a project of its own =="
export PKG_CONFIG_PATH="$folder/installed/lib/pkgconfig"
levels=core
if pkg-config --exists kolo; then levels="core;kolo"; fi
ctest --build-and-test "$root/tests/install/consumer" "$folder/consumer" \
  --build-generator Ninja --build-options -DCMAKE_PREFIX_PATH="$folder/installed" \
  -DCONSUMER_LEVELS="$levels" --test-command ctest --output-on-failure --no-tests=error
read -r -a flags <<<"$(pkg-config --cflags --libs kolo-core)"
c++ -std=c++20 "$root/tests/install/consumer/core.cpp" -o "$folder/core" "${flags[@]}"
LD_LIBRARY_PATH="$folder/installed/lib" "$folder/core"
if pkg-config --exists kolo; then
  read -r -a flags <<<"$(pkg-config --cflags --libs kolo)"
  c++ -std=c++20 "$root/tests/install/consumer/tensors.cpp" -o "$folder/tensors" "${flags[@]}"
  LD_LIBRARY_PATH="$folder/installed/lib" "$folder/tensors"
  read -r -a flags <<<"$(pkg-config --cflags --libs kolo-extras)"
  c++ -std=c++20 "$root/tests/install/consumer/extras.cpp" -o "$folder/extras" "${flags[@]}"
  LD_LIBRARY_PATH="$folder/installed/lib" "$folder/extras"
fi
