kolo_add_mpi_test(runtime_mpi_test SOURCES
  mpi/communicator_mpi_test.cpp
  mpi/process_sets_mpi_test.cpp
  mpi/runtime_errors_mpi_test.cpp
  mpi/runtime_mpi_test.cpp
  mpi/runtime_over_mpi_test.cpp
)
if(NOT KOLO_SANITIZE)
  # As in containers, where Open MPI sends long messages in pieces, which it moves only while a rank
  # calls it. The variables are those of Open MPI 4 and 5.
  kolo_add_variant(runtime_mpi_test no_single_copy 3 60 ENVIRONMENT
    OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_smsc=^cma,knem,xpmem)
  # With MPI_THREAD_SERIALIZED, with messages only, and with a guard that ends a process if two
  # threads are inside MPI at once.
  add_library(thread_guard SHARED support/mpi/thread_guard.cpp)
  kolo_configure_target(thread_guard)
  target_link_libraries(thread_guard PRIVATE MPI::MPI_C)
  set(test runtime_mpi_test.serialized.np3)
  kolo_add_mpirun_test(${test} 3 300 $<TARGET_FILE:runtime_mpi_test>)
  kolo_collect_cases(${test})
  set_property(TEST ${test} APPEND PROPERTY ENVIRONMENT KOLO_TEST_THREAD_LEVEL=serialized
    KOLO_SHARED_MEMORY=off LD_PRELOAD=$<TARGET_FILE:thread_guard>)
  include(mpi/mpich.cmake)
endif()
