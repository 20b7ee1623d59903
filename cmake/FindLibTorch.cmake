# LibTorch::LibTorch, LibTorch_ROOT, LibTorch_VERSION: a LibTorch from Torch_DIR, CMAKE_PREFIX_PATH,
# an installed Kolo, which was built with it, or the cache that cmake/setup.sh fills.
#
# LibTorch's own package file insists on a CUDA toolkit and links every CUDA library, though
# a program on the CPU needs only libtorch_cpu and libc10. This module therefore links only these,
# and for CUDA tensors libtorch_cuda and libc10_cuda if they are there and KOLO_WITH_CUDA is not
# OFF.

include("${CMAKE_CURRENT_LIST_DIR}/KoloCache.cmake")
file(GLOB _places "${KOLO_CACHE_DIR}/libtorch-*/complete")
list(SORT _places COMPARE NATURAL ORDER DESCENDING)
list(TRANSFORM _places REPLACE "complete$" "torch")
# The LibTorch with a CUDA part is large, and only for builds that need it.
set(_with_cuda ${_places})
list(FILTER _with_cuda INCLUDE REGEX "-cuda/torch$")
list(FILTER _places EXCLUDE REGEX "-cuda/torch$")
if("${KOLO_WITH_CUDA}" STREQUAL "ON")
  list(PREPEND _places ${_with_cuda})
endif()

# koloConfig.cmake names the one that Kolo was built with.
if(_kolo_libtorch)
  list(PREPEND _places "${_kolo_libtorch}")
endif()

# PyTorch's own torch.utils.cmake_prefix_path is the folder share/cmake of a LibTorch.
string(REPLACE ":" ";" _prefixes "$ENV{CMAKE_PREFIX_PATH}")
foreach(_prefix IN LISTS _prefixes CMAKE_PREFIX_PATH)
  list(PREPEND _places "${_prefix}" "${_prefix}/../..")
endforeach()
foreach(_dir IN ITEMS "$ENV{Torch_DIR}" "${Torch_DIR}")
  if(_dir)
    list(PREPEND _places "${_dir}/../../..")
  endif()
endforeach()
find_path(LibTorch_ROOT include/ATen/core/Tensor.h PATHS ${_places} NO_DEFAULT_PATH)
find_library(LibTorch_torch_cpu_LIBRARY torch_cpu PATHS "${LibTorch_ROOT}/lib" NO_DEFAULT_PATH)
find_library(LibTorch_c10_LIBRARY c10 PATHS "${LibTorch_ROOT}/lib" NO_DEFAULT_PATH)
find_library(LibTorch_torch_cuda_LIBRARY torch_cuda PATHS "${LibTorch_ROOT}/lib" NO_DEFAULT_PATH)
find_library(LibTorch_c10_cuda_LIBRARY c10_cuda PATHS "${LibTorch_ROOT}/lib" NO_DEFAULT_PATH)
mark_as_advanced(LibTorch_torch_cpu_LIBRARY LibTorch_c10_LIBRARY
  LibTorch_torch_cuda_LIBRARY LibTorch_c10_cuda_LIBRARY)

set(_api "${LibTorch_ROOT}/include/torch/csrc/api/include")
foreach(_header "${LibTorch_ROOT}/include/torch/headeronly/version.h" "${_api}/torch/version.h")
  if(EXISTS "${_header}" AND NOT LibTorch_VERSION)
    file(STRINGS "${_header}" _lines REGEX "^#define TORCH_VERSION_(MAJOR|MINOR|PATCH) +[0-9]+")
    list(TRANSFORM _lines REPLACE ".* ([0-9]+).*" "\\1")
    list(JOIN _lines "." LibTorch_VERSION)
  endif()
endforeach()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_ROOT LibTorch_torch_cpu_LIBRARY LibTorch_c10_LIBRARY
  VERSION_VAR LibTorch_VERSION)

if(LibTorch_FOUND AND NOT TARGET LibTorch::LibTorch)
  add_library(LibTorch::c10 SHARED IMPORTED)
  set_target_properties(LibTorch::c10 PROPERTIES IMPORTED_LOCATION "${LibTorch_c10_LIBRARY}")
  add_library(LibTorch::LibTorch SHARED IMPORTED)
  set_target_properties(LibTorch::LibTorch PROPERTIES
    IMPORTED_LOCATION "${LibTorch_torch_cpu_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${LibTorch_ROOT}/include;${_api}"
    INTERFACE_LINK_LIBRARIES LibTorch::c10)
  if(LibTorch_torch_cuda_LIBRARY AND LibTorch_c10_cuda_LIBRARY
      AND NOT "${KOLO_WITH_CUDA}" STREQUAL "OFF")
    # Programs use no symbol of these libraries, which register themselves when they are loaded.
    set(_cuda "${LibTorch_torch_cuda_LIBRARY},${LibTorch_c10_cuda_LIBRARY}")
    set_property(TARGET LibTorch::LibTorch APPEND PROPERTY INTERFACE_LINK_LIBRARIES
      "-Wl,--push-state,--no-as-needed,${_cuda},--pop-state")
  endif()
  # A library with the older C++ ABI has no symbol with this tag.
  file(STRINGS "${LibTorch_c10_LIBRARY}" _tagged REGEX "__cxx11" LIMIT_COUNT 1)
  if(NOT _tagged)
    set_target_properties(LibTorch::LibTorch PROPERTIES
      INTERFACE_COMPILE_DEFINITIONS _GLIBCXX_USE_CXX11_ABI=0)
  endif()
endif()
