# A short test of the core over MPICH: the library is the one of the ordinary build; only what
# includes mpi.h for the tests is compiled again. tests/tools/other_mpi.sh runs more tests, over
# MPICH and other MPIs.

set(mpich_version 5.0.2)  # cmake/test_tools.sh has it too
if(DEFINED ENV{XDG_CACHE_HOME})
  set(mpich_folder "$ENV{XDG_CACHE_HOME}")
else()
  set(mpich_folder "$ENV{HOME}/.cache")
endif()
string(APPEND mpich_folder "/kolo/mpi/mpich-${mpich_version}")
if(EXISTS "${mpich_folder}/bin/mpiexec")
  get_target_property(main_sources kolo_test_mpi_main SOURCES)
  add_executable(runtime_mpich_test ${main_sources}
    comm/mpi_library_test.cpp
    mpi/communicator_mpi_test.cpp
    mpi/process_sets_mpi_test.cpp
    mpi/runtime_errors_mpi_test.cpp
    mpi/runtime_mpi_test.cpp
    mpi/runtime_over_mpi_test.cpp)
  kolo_configure_target(runtime_mpich_test)
  kolo_internal_includes(runtime_mpich_test)
  kolo_compile_quickly(runtime_mpich_test)
  target_compile_definitions(runtime_mpich_test PRIVATE MPICH_SKIP_MPICXX)
  target_include_directories(runtime_mpich_test SYSTEM PRIVATE "${mpich_folder}/include")
  target_include_directories(runtime_mpich_test PRIVATE
    "${PROJECT_SOURCE_DIR}/include" "${CMAKE_CURRENT_SOURCE_DIR}")
  # Linked as files, since the targets would add the other MPI.
  add_dependencies(runtime_mpich_test kolo_test_support kolo_core)
  target_link_libraries(runtime_mpich_test PRIVATE
    $<TARGET_FILE:kolo_test_support> $<TARGET_FILE:kolo_core> "${mpich_folder}/lib/libmpi.so"
    hwy::hwy Threads::Threads GTest::gtest)
  if(KOLO_CUDA)
    target_compile_definitions(runtime_mpich_test PRIVATE KOLO_CUDA)
    target_link_libraries(runtime_mpich_test PRIVATE CUDA::cudart NCCL::NCCL)
  endif()
  if(KOLO_BUILD_EXAMPLES)  # loads the MPI of the mpiexec that starts it
    add_test(NAME mpi_start.mpich
      COMMAND Python3::Interpreter "${CMAKE_CURRENT_SOURCE_DIR}/expect_output.py" succeeds
        "rank 1 of 2: sum = .3, 20, 200."
        "${mpich_folder}/bin/mpiexec" -n 2 $<TARGET_FILE:01_hello_allreduce>)
    kolo_set_mpirun_properties(mpi_start.mpich 2 60)
  endif()
  set(mpich_command "${mpich_folder}/bin/mpiexec" -n 3 $<TARGET_FILE:runtime_mpich_test>)
else()
  set(mpich_command sh -c
    "echo 'skipped: no MPICH ${mpich_version}; cmake/setup.sh --tests installs it'; exit 77")
endif()
add_test(NAME runtime_mpich_test.np3 COMMAND ${mpich_command})
kolo_set_mpirun_properties(runtime_mpich_test.np3 3 300)
kolo_collect_cases(runtime_mpich_test.np3)
set_tests_properties(runtime_mpich_test.np3 PROPERTIES SKIP_RETURN_CODE 77)
