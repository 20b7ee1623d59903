kolo_add_test(comm_test SOURCES
  ops/convert_table_test.cpp
  comm/fake_world_test.cpp
  comm/peer_liveness_test.cpp
  comm/self_world_test.cpp
  comm/shared_segment_test.cpp
  comm/topology_test.cpp
  comm/wait_test.cpp)
set(rendezvous_sources comm/rendezvous_world_test.cpp)
if(KOLO_UCX_INCLUDE_DIR AND NOT KOLO_SANITIZE STREQUAL "thread")  # which UCX's hooks crash
  list(APPEND rendezvous_sources comm/ucx_messages_test.cpp)
endif()
kolo_add_test(rendezvous_test SOURCES ${rendezvous_sources})
kolo_add_test(fake_gpu_test SOURCES
  comm/fake_gpu_launches_test.cpp
  comm/fake_gpu_memory_test.cpp
  comm/fake_gpu_mistakes_test.cpp
  comm/fake_gpu_test.cpp
  comm/happens_before_test.cpp)
kolo_add_mpi_test(comm_mpi_test
  SOURCES comm/mpi_handles_test.cpp comm/mpi_library_test.cpp comm/mpi_world_test.cpp
  LIBRARIES MPI::MPI_C)
if(NOT KOLO_SANITIZE)
  include(comm/mpi_start.cmake)

  # These fail on purpose, with the expected output.
  kolo_test_executable(mpi_main_test support/mpi/mpi_main_test.cpp)
  target_link_libraries(mpi_main_test PRIVATE kolo_test_mpi_main)
  # Further arguments are passed to the program.
  function(kolo_add_main_test test ending output)
    add_test(NAME mpi_main.${test}
      COMMAND Python3::Interpreter "${CMAKE_CURRENT_SOURCE_DIR}/expect_output.py"
        ${ending} "${output}" ${KOLO_MPIRUN} ${MPIEXEC_NUMPROC_FLAG} 3
        $<TARGET_FILE:mpi_main_test> ${ARGN} --gtest_filter=*.${test})
    kolo_set_mpirun_properties(mpi_main.${test} 3 60)
  endfunction()
  kolo_add_main_test(FailsOnOneRank fails
    "rank 2/3. [^:]*mpi_main_test.cpp:[0-9]+: [^:]*this rank alone\nin two lines")
  kolo_add_main_test(FailsTogether fails "does not hold on rank 2")
  kolo_add_main_test(SkipsTogether succeeds "rank 2: the last rank cannot\n.*1 test, listed")
  kolo_add_main_test(Hangs fails
    "rank [0-2]/3. watchdog: MpiMainTest.Hangs has run for more than 3 s" --longest-test=3)
endif()
