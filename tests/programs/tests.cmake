add_library(kolo_programs STATIC
  programs/agreement.cpp
  programs/memory.cpp
  programs/program.cpp
  programs/random_operation.cpp
  programs/random_program.cpp
  programs/rank_plan.cpp
  programs/rank_runner.cpp
  programs/reference.cpp
  programs/run_program.cpp
  programs/values.cpp
  programs/watch.cpp
)
kolo_configure_target(kolo_programs)
kolo_internal_includes(kolo_programs)
target_include_directories(kolo_programs PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}")
target_link_libraries(kolo_programs PUBLIC kolo_test_support)
kolo_add_test(random_program_test SOURCES programs/random_program_test.cpp
  LIBRARIES kolo_programs TIMEOUT 600)
kolo_test_executable(program_gate
  programs/run_in_processes.cpp
  support/mpi/groups.cpp
  support/mpi/mpi_ranks.cpp
  tools/program_gate.cpp
)
target_link_libraries(program_gate PRIVATE kolo_programs CLI11::CLI11 MPI::MPI_C)
if(NOT KOLO_SANITIZE)
  # Four ranks: process sets that have no rank in common, at the same time, over real messages; and
  # every algorithm, which a program chooses for its collectives.
  kolo_add_mpirun_test(program_gate.np4 4 300 $<TARGET_FILE:program_gate> --seeds 30)
endif()
