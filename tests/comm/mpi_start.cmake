# How Kolo starts, joins and leaves MPI. Included by tests/CMakeLists.txt, to which paths are
# relative.

kolo_test_executable(mpi_start comm/mpi_start.cpp)
target_link_libraries(mpi_start PRIVATE MPI::MPI_C)
foreach(way IN ITEMS start start_static join join_single late broken_pipe)
  kolo_add_mpirun_test(mpi_start.${way} 2 60 $<TARGET_FILE:mpi_start> ${way})
endforeach()
add_test(NAME mpi_start.freed_after_loss
  COMMAND ${KOLO_MPIRUN} ${MPIEXEC_NUMPROC_FLAG} 2 $<TARGET_FILE:mpi_start> freed_after_loss)
kolo_set_mpirun_properties(mpi_start.freed_after_loss 2 60 SLEEPS)
add_test(NAME mpi_start.alone COMMAND mpi_start alone)
add_test(NAME mpi_start.too_early COMMAND mpi_start too_early)
add_test(NAME mpi_start.never
  COMMAND Python3::Interpreter "${CMAKE_CURRENT_SOURCE_DIR}/expect_output.py" fails
    "Of 3 ranks, 2 have come on this host .ranks 0 and 2.; rank 1 has not come"
    ${KOLO_MPIRUN} ${MPIEXEC_NUMPROC_FLAG} 3 $<TARGET_FILE:mpi_start> never)
kolo_set_mpirun_properties(mpi_start.never 3 60)
add_test(NAME mpi_start.nested
  COMMAND Python3::Interpreter "${CMAKE_CURRENT_SOURCE_DIR}/expect_output.py" succeeds
    "process [0-9]+, which is rank 1 of a job, has started this one.*a world of 1 without MPI"
    ${KOLO_MPIRUN} ${MPIEXEC_NUMPROC_FLAG} 2 $<TARGET_FILE:mpi_start> nested)
kolo_set_mpirun_properties(mpi_start.nested 2 60)
add_library(plug_in MODULE comm/plug_in.cpp)
kolo_configure_target(plug_in)
target_link_libraries(plug_in PRIVATE kolo_core)
kolo_test_executable(two_copies comm/two_copies.cpp)
target_link_libraries(two_copies PRIVATE ${CMAKE_DL_LIBS})
add_test(NAME mpi_start.two_copies
  COMMAND Python3::Interpreter "${CMAKE_CURRENT_SOURCE_DIR}/expect_output.py" succeeds
    "Kolo has not been started.*Another copy of the library has been started in this process"
    $<TARGET_FILE:two_copies> $<TARGET_FILE:plug_in>)
# Programs are not linked with MPI: what they load, or that there is none.
if(KOLO_BUILD_EXAMPLES)
  function(kolo_add_loading_test name library output)
    add_test(NAME mpi_start.${name}
      COMMAND Python3::Interpreter "${CMAKE_CURRENT_SOURCE_DIR}/expect_output.py" fails "${output}"
        $<TARGET_FILE:01_hello_allreduce>)
    set_tests_properties(mpi_start.${name} PROPERTIES ENVIRONMENT
      "OMPI_COMM_WORLD_RANK=0;OMPI_COMM_WORLD_SIZE=2;KOLO_MPI_LIBRARY=${library}")
  endfunction()
  kolo_add_loading_test(no_mpi /none/libmpi.so
    "no MPI library could be loaded:\n  /none/libmpi.so: .*KOLO_MPI_LIBRARY.*KOLO_RENDEZVOUS")
  kolo_add_loading_test(not_mpi libm.so.6 "libm.so.6, which is not an MPI library")
endif()
# An MPI that grants less than Kolo asks for; see thread_guard.cpp.
foreach(level IN ITEMS serialized funneled)
  string(TOUPPER ${level} name)
  add_test(NAME mpi_start.${level}
    COMMAND Python3::Interpreter "${CMAKE_CURRENT_SOURCE_DIR}/expect_output.py" succeeds
      "MPI has granted MPI_THREAD_${name}.*docs/clusters.md"
      ${KOLO_MPIRUN} ${MPIEXEC_NUMPROC_FLAG} 2 $<TARGET_FILE:mpi_start> singleton)
  kolo_set_mpirun_properties(mpi_start.${level} 2 60)
  set_property(TEST mpi_start.${level} APPEND PROPERTY ENVIRONMENT
    KOLO_TEST_THREAD_LEVEL=${level} LD_PRELOAD=$<TARGET_FILE:thread_guard>)
endforeach()
# Each launcher's environment, without the launcher.
function(kolo_add_singleton_test launcher output)
  add_test(NAME mpi_start.singleton_${launcher}
    COMMAND Python3::Interpreter "${CMAKE_CURRENT_SOURCE_DIR}/expect_output.py" succeeds
      "${output}" $<TARGET_FILE:mpi_start> singleton)
  set_tests_properties(mpi_start.singleton_${launcher} PROPERTIES ENVIRONMENT "${ARGN}")
endfunction()
kolo_add_singleton_test(mpirun "mpirun started 4 processes .OMPI_COMM_WORLD_SIZE"
  OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=4)
kolo_add_singleton_test(hydra "mpiexec of MPICH or Intel MPI.* started 3 processes .PMI_SIZE"
  PMI_RANK=1 PMI_SIZE=3)
kolo_add_singleton_test(slurm "srun started 2 processes .SLURM_STEP_NUM_TASKS.*srun --mpi=pmix"
  SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_JOB_ID=7)
kolo_add_singleton_test(slurm_pmi2 "or srun --mpi=pmi2, started 2 processes .PMI_SIZE.*--mpi=list"
  SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 PMI_RANK=1 PMI_SIZE=2)
kolo_add_singleton_test(slurm_allocation "a world of 1 without" SLURM_NTASKS=2 SLURM_JOB_ID=7)
kolo_add_singleton_test(slurm_single "a world of 1 without" SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1)
kolo_add_singleton_test(pals "PALS started 2 processes" PALS_RANKID=0 PALS_APID=x PMI_SIZE=2)
kolo_add_singleton_test(mvapich2 "MVAPICH2's mpirun started 2 processes"
  MV2_COMM_WORLD_RANK=0 MV2_COMM_WORLD_SIZE=2)
kolo_add_singleton_test(mvapich "MVAPICH's mpirun started 2 processes"
  MVP_COMM_WORLD_RANK=0 MVP_COMM_WORLD_SIZE=2)
kolo_add_singleton_test(flux "Flux started 2 processes .FLUX_JOB_SIZE"
  FLUX_TASK_RANK=0 FLUX_JOB_SIZE=2 PMI_RANK=0 PMI_SIZE=2)
kolo_add_singleton_test(torchrun "torchrun started 2 processes .WORLD_SIZE.*mpirun -np N"
  RANK=0 WORLD_SIZE=2 TORCHELASTIC_RUN_ID=none SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1)
kolo_add_singleton_test(torchrun_single "a world of 1 without"
  RANK=0 WORLD_SIZE=1 TORCHELASTIC_RUN_ID=none)
kolo_add_singleton_test(ranks_of_another "a world of 1 without" RANK=0 WORLD_SIZE=2)
kolo_add_singleton_test(none "a world of 1 without" PMI_RANK=1 PMI_SIZE=3 KOLO_LAUNCHER=none)
kolo_add_singleton_test(unknown "a world of 1 with MPI" KOLO_LAUNCHER=mpi)
