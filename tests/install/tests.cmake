# A separate project builds and runs against the build tree and the install tree.

set(prefix "${CMAKE_CURRENT_BINARY_DIR}/install/prefix")
set(environment OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1)
if(KOLO_CCACHE)
  list(APPEND environment CMAKE_CXX_COMPILER_LAUNCHER=${KOLO_CCACHE} ${KOLO_CCACHE_SETTINGS})
endif()
add_test(NAME install.prefix COMMAND sh -c
  "rm -rf '${prefix}' && '${CMAKE_COMMAND}' --install '${PROJECT_BINARY_DIR}' --prefix '${prefix}'")
set_tests_properties(install.prefix PROPERTIES FIXTURES_SETUP install_tree TIMEOUT 60)

foreach(tree build install)
  foreach(type Debug Release)
    set(package_dir "${PROJECT_BINARY_DIR}")
    set(levels "-DCONSUMER_LEVELS=core")
    if(tree STREQUAL "install")
      set(package_dir "${prefix}/${package_install_dir}")
      if(TARGET kolo AND type STREQUAL "Release")  # LibTorch's headers take their time
        set(levels "-DCONSUMER_LEVELS=core$<SEMICOLON>kolo")
      endif()
    endif()
    set(test install.consumer_of_${tree}_tree.${type})
    add_test(NAME ${test} COMMAND "${CMAKE_CTEST_COMMAND}"
      --build-and-test "${CMAKE_CURRENT_SOURCE_DIR}/install/consumer"
      "${CMAKE_CURRENT_BINARY_DIR}/install/${tree}_${type}"
      --build-generator "${CMAKE_GENERATOR}"
      --build-options "-Dkolo_DIR=${package_dir}" "-DCMAKE_BUILD_TYPE=${type}" "${levels}"
      --test-command "${CMAKE_CTEST_COMMAND}" --output-on-failure --no-tests=error)
    kolo_set_cost(${test} 1 300)
    set_tests_properties(${test} PROPERTIES
      TIMEOUT 300
      ENVIRONMENT "${environment}")
    if(tree STREQUAL "install")
      set_tests_properties(${test} PROPERTIES FIXTURES_REQUIRED install_tree)
    endif()
  endforeach()
endforeach()

if(TARGET kolo AND EXISTS "${PROJECT_BINARY_DIR}/Torch")
  foreach(order IN ITEMS torch_first kolo_first)
    string(COMPARE EQUAL ${order} kolo_first kolo_first)
    add_test(NAME install.${order} COMMAND "${CMAKE_CTEST_COMMAND}"
      --build-and-test "${CMAKE_CURRENT_SOURCE_DIR}/install/torch_program"
      "${CMAKE_CURRENT_BINARY_DIR}/install/${order}"
      --build-generator "${CMAKE_GENERATOR}"
      --build-options "-DCMAKE_PREFIX_PATH=${prefix}" "-DKOLO_FIRST=${kolo_first}"
      --test-command "${CMAKE_CTEST_COMMAND}" --output-on-failure --no-tests=error)
    kolo_set_cost(install.${order} 1 600)
    set_tests_properties(install.${order} PROPERTIES
      TIMEOUT 600
      ENVIRONMENT "${environment}"
      FIXTURES_REQUIRED install_tree)
  endforeach()
endif()
add_test(NAME install.twice COMMAND "${CMAKE_COMMAND}"
  -S "${CMAKE_CURRENT_SOURCE_DIR}/install/twice" -B "${CMAKE_CURRENT_BINARY_DIR}/install/twice"
  "-DKOLO_SOURCE_DIR=${PROJECT_SOURCE_DIR}" "-Dkolo_DIR=${PROJECT_BINARY_DIR}"
  "-DCMAKE_PREFIX_PATH=${CMAKE_PREFIX_PATH}" -DKOLO_WITH_CUDA=OFF)

add_test(NAME install.packages COMMAND "${CMAKE_CURRENT_SOURCE_DIR}/install/packages.sh"
  "${PROJECT_BINARY_DIR}-shared"
  "-DKOLO_WITH_CUDA=${KOLO_CUDA}" "-DKOLO_WITH_TORCH=${KOLO_TORCH}"
  "-DCMAKE_COMPILE_WARNING_AS_ERROR=${CMAKE_COMPILE_WARNING_AS_ERROR}")
kolo_set_cost(install.packages 2 900)
set_tests_properties(install.packages PROPERTIES
  TIMEOUT 900
  ENVIRONMENT "${environment}")

if(KOLO_BUILD_EXAMPLES)
  # kolo-bench looks for the baseline's program in its own folder.
  add_test(NAME install.kolo-bench COMMAND "${prefix}/${CMAKE_INSTALL_BINDIR}/kolo-bench"
    --np 2 --baseline mpi --max 1KB --rounds 1)
  kolo_set_mpirun_properties(install.kolo-bench 2 60)
  set_tests_properties(install.kolo-bench PROPERTIES FIXTURES_REQUIRED install_tree)
endif()
