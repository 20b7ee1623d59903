# Settings of all targets.

find_program(KOLO_CCACHE ccache)
mark_as_advanced(KOLO_CCACHE)
# Paths are relative to the checkout, so that clones share compiled files. With DEPEND, ccache does
# not preprocess what it is going to compile. Without INODECACHE, it hashes LibTorch's 5,000 headers
# and the precompiled ones for each file. Without the sloppiness, it does not cache files that use a
# precompiled header.
set(KOLO_CCACHE_SETTINGS CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 CCACHE_DEPEND=1
  CCACHE_INODECACHE=1 CCACHE_SLOPPINESS=pch_defines,time_macros)

# Where ccache has all files, linking is most of what a build does. mold is much faster than GNU ld.
include(CheckLinkerFlag)
check_linker_flag(CXX -fuse-ld=mold KOLO_HAS_MOLD)

# kolo_configure_target(<target>): language, visibility, warnings, sanitizer, compiler cache.
function(kolo_configure_target target)
  set_target_properties(${target} PROPERTIES
    CXX_EXTENSIONS OFF
    POSITION_INDEPENDENT_CODE ON
    CXX_VISIBILITY_PRESET hidden
    CUDA_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON)
  target_compile_features(${target} PRIVATE cxx_std_20)
  # CMAKE_COMPILE_WARNING_AS_ERROR makes them errors.
  set(warnings -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow)
  get_target_property(is_unity ${target} UNITY_BUILD)
  if(is_unity AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # g++ takes types in coroutine frames for types of a header if the file is included.
    list(APPEND warnings -Wno-subobject-linkage)
  endif()
  target_compile_options(${target} PRIVATE "$<$<NOT:$<COMPILE_LANGUAGE:CUDA>>:${warnings}>")
  if(KOLO_CUDA)
    # CMake cannot set C++20 for recent CUDA compilers. constexpr functions are compiled for the GPU
    # too. nvcc's output for the host compiler is not pedantic; only nvcc knows "#pragma unroll".
    set(warnings -Xcompiler=-Wall,-Wextra,-Wshadow,-Wno-unknown-pragmas)
    target_compile_options(${target} PRIVATE
      "$<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;--expt-relaxed-constexpr;${warnings}>")
  endif()
  if(KOLO_SANITIZE)
    set(sanitize "-fsanitize=${KOLO_SANITIZE};-fno-sanitize-recover=all;-fno-omit-frame-pointer")
    if(KOLO_SANITIZE MATCHES "address")
      # AddressSanitizer finds most of what these checks find, and the core compiles a fifth faster
      # without them.
      list(APPEND sanitize -fno-sanitize=null,object-size,pointer-overflow)
    endif()
    # g++ finds variables uninitialized that the sanitizers' own code leaves so.
    list(APPEND sanitize "$<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>")
    # With coroutines, the output of Clang's check of function pointers does not assemble.
    list(APPEND sanitize "$<$<CXX_COMPILER_ID:Clang>:-fno-sanitize=function>")
    target_compile_options(${target} PRIVATE "$<$<NOT:$<COMPILE_LANGUAGE:CUDA>>:${sanitize}>")
    target_link_options(${target} PUBLIC -fsanitize=${KOLO_SANITIZE})
  endif()
  get_target_property(type ${target} TYPE)
  if(KOLO_HAS_MOLD AND PROJECT_IS_TOP_LEVEL AND type STREQUAL "EXECUTABLE")
    target_link_options(${target} PRIVATE -fuse-ld=mold)
  endif()
  kolo_use_ccache(${target})
endfunction()

# kolo_use_ccache(<target>): if there is one, and Kolo is not part of another project.
function(kolo_use_ccache target)
  if(KOLO_CCACHE AND PROJECT_IS_TOP_LEVEL)
    set(launcher env ${KOLO_CCACHE_SETTINGS} ${KOLO_CCACHE})
    set_target_properties(${target} PROPERTIES
      CXX_COMPILER_LAUNCHER "${launcher}"
      CUDA_COMPILER_LAUNCHER "${launcher}")
  endif()
endfunction()

# kolo_internal_includes(<target>): lets it include internal headers, as in "comm/topology.hpp",
# "ops/registry.hpp" and "runtime/control/wire_generated.h".
function(kolo_internal_includes target)
  target_include_directories(${target} PRIVATE
    "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}")
  # Not for CUDA, which needs neither: ccache does not see the path in nvcc's "-isystem=".
  target_include_directories(${target} SYSTEM PRIVATE
    "$<$<COMPILE_LANGUAGE:CXX>:${PROJECT_BINARY_DIR}/generated>"
    "$<$<COMPILE_LANGUAGE:CXX>:${KOLO_FLATBUFFERS_INCLUDE_DIR}>")
endfunction()

# kolo_precompile_headers(<target> <header>...): compiles headers of other projects once. Not where
# each source is compiled by itself, which shows whether it includes what it uses; and not with
# Clang, which refuses precompiled headers from ccache. With -fPIC, the headers serve libraries and
# programs, which CMake compiles with -fPIE.
function(kolo_precompile_headers target)
  if(CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_precompile_headers(${target} PRIVATE ${ARGN})
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fPIC>)
  endif()
endfunction()

# kolo_reuse_precompiled(<target> <other>): the headers that <other> has compiled, if it has any.
function(kolo_reuse_precompiled target other)
  get_target_property(headers ${other} PRECOMPILE_HEADERS)
  if(headers)
    target_precompile_headers(${target} REUSE_FROM ${other})
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fPIC>)
  endif()
endfunction()

# kolo_flatbuffers(<target> <schema>...): adds <folder>/<name>_generated.h for each
# <folder>/<name>.fbs of the current source directory.
function(kolo_flatbuffers target)
  foreach(schema IN LISTS ARGN)
    get_filename_component(folder "${schema}" DIRECTORY)
    get_filename_component(name "${schema}" NAME_WE)
    set(output "${PROJECT_BINARY_DIR}/generated/${folder}")
    add_custom_command(
      OUTPUT "${output}/${name}_generated.h"
      COMMAND "${KOLO_FLATC}" --cpp --scoped-enums -o "${output}"
              "${CMAKE_CURRENT_SOURCE_DIR}/${schema}"
      DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/${schema}"
      COMMENT "flatc ${schema}"
      VERBATIM)
    # Across directories, only a target makes the header precede the sources that include it.
    add_custom_target(${target}_${name}_schema DEPENDS "${output}/${name}_generated.h")
    add_dependencies(${target} ${target}_${name}_schema)
  endforeach()
endfunction()
