kolo_test_executable(victim failure/record.cpp failure/victim.cpp)
foreach(scenario IN ITEMS
    idle negotiating others_posted posted busy mid_chunk sharing_memory mpi_started shutting_down
    left throws stops vanishes rests diverges falls_silent costs)
  add_test(NAME failure.${scenario}
    COMMAND Python3::Interpreter "${CMAKE_CURRENT_SOURCE_DIR}/failure/failure_test.py"
      ${scenario} $<TARGET_FILE:victim> ${KOLO_MPIRUN})
  kolo_set_mpirun_properties(failure.${scenario} 4 300 SLEEPS)
endforeach()
add_test(NAME failure.idle_on_old_kernels
  COMMAND Python3::Interpreter "${CMAKE_CURRENT_SOURCE_DIR}/failure/failure_test.py"
    idle $<TARGET_FILE:victim> ${KOLO_MPIRUN})
kolo_set_mpirun_properties(failure.idle_on_old_kernels 4 300 SLEEPS)
set_property(TEST failure.idle_on_old_kernels APPEND PROPERTY
  ENVIRONMENT KOLO_TEST_WITHOUT_PIDFD=1)
foreach(scenario IN ITEMS idle busy mid_chunk shutting_down left throws stops diverges)
  add_test(NAME failure.without_mpi.${scenario}
    COMMAND Python3::Interpreter "${CMAKE_CURRENT_SOURCE_DIR}/failure/failure_test.py"
      ${scenario} $<TARGET_FILE:victim> ${KOLO_MPIRUN})
  kolo_set_mpirun_properties(failure.without_mpi.${scenario} 4 300 SLEEPS)
  set_property(TEST failure.without_mpi.${scenario} APPEND PROPERTY
    ENVIRONMENT KOLO_TEST_RENDEZVOUS=1)
endforeach()
kolo_test_executable(uncaught failure/uncaught.cpp)
add_test(NAME failure.one_screen
  COMMAND Python3::Interpreter "${CMAKE_CURRENT_SOURCE_DIR}/failure/one_screen_test.py"
    $<TARGET_FILE:uncaught> ${KOLO_MPIRUN})
kolo_set_mpirun_properties(failure.one_screen 4 300 SLEEPS)
kolo_test_executable(freed_memory failure/freed_memory.cpp)
target_link_libraries(freed_memory PRIVATE MPI::MPI_C)
add_test(NAME failure.freed_memory
  COMMAND Python3::Interpreter "${CMAKE_CURRENT_SOURCE_DIR}/failure/freed_memory_test.py"
    $<TARGET_FILE:freed_memory> ${KOLO_MPIRUN})
kolo_set_mpirun_properties(failure.freed_memory 3 300)
kolo_test_executable(fork_victim failure/fork.cpp)
foreach(way IN ITEMS throws exits returns uses)
  kolo_add_mpirun_test(failure.fork.${way} 2 60 $<TARGET_FILE:fork_victim> ${way})
endforeach()
add_test(NAME failure.namespaces
  COMMAND Python3::Interpreter "${CMAKE_CURRENT_SOURCE_DIR}/failure/namespaces_test.py"
    $<TARGET_FILE:runtime_mpi_test> ${KOLO_MPIRUN})
kolo_set_mpirun_properties(failure.namespaces 2 300)
set_tests_properties(failure.namespaces PROPERTIES SKIP_RETURN_CODE 77)
if(TARGET kolo)
  kolo_test_executable(memory_limit failure/memory_limit.cpp)
  target_link_libraries(memory_limit PRIVATE kolo)
  kolo_precompile_torch(memory_limit)
  add_test(NAME failure.memory_limit
    COMMAND Python3::Interpreter "${CMAKE_CURRENT_SOURCE_DIR}/failure/memory_limit_test.py"
      $<TARGET_FILE:memory_limit> ${KOLO_MPIRUN} ${MPIEXEC_NUMPROC_FLAG})
  kolo_set_mpirun_properties(failure.memory_limit 4 600)
  set_tests_properties(failure.memory_limit PROPERTIES SKIP_RETURN_CODE 77)
endif()
