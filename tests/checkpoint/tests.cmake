# Not under ThreadSanitizer: ranks share only files, so it would find nothing, after minutes.
if(NOT "${KOLO_SANITIZE}" STREQUAL "thread")
  kolo_add_test(checkpoint_test
    SOURCES
      checkpoint/untrusted_text_test.cpp
      checkpoint/read_errors_test.cpp
      checkpoint/round_trip_test.cpp
      checkpoint/safetensors_files_test.cpp
      checkpoint/safetensors_test.cpp
      checkpoint/shared_folder_test.cpp
      checkpoint/write_errors_test.cpp
      checkpoint/write_test.cpp
    LIBRARIES kolo_checkpoint
    TIMEOUT 600)
endif()
if(NOT KOLO_SANITIZE)
  add_library(kolo_kill_at SHARED checkpoint/kill_at.cpp)
  kolo_configure_target(kolo_kill_at)
  target_include_directories(kolo_kill_at PUBLIC "${CMAKE_CURRENT_SOURCE_DIR}")
  target_link_libraries(kolo_kill_at PRIVATE ${CMAKE_DL_LIBS})
  kolo_test_executable(checkpoint_writer checkpoint/checkpoint_writer.cpp)
  target_link_libraries(checkpoint_writer PRIVATE kolo_checkpoint)
  set(checkpoint_folder "${CMAKE_CURRENT_SOURCE_DIR}/checkpoint")
  # Python with safetensors and NumPy, if the cache that cmake/setup.sh fills has one.
  find_program(KOLO_PACKAGES_PYTHON python3 PATHS "${KOLO_CACHE_DIR}/python/bin" NO_DEFAULT_PATH)
  set(checkpoint_python Python3::Interpreter)
  if(KOLO_PACKAGES_PYTHON)
    set(checkpoint_python "${KOLO_PACKAGES_PYTHON}")
  endif()
  # kolo_add_checkpoint_test(<name> <script> <ranks> <victim> <argument>...)
  function(kolo_add_checkpoint_test name script ranks victim)
    add_test(NAME ${name}
      COMMAND ${checkpoint_python} "${checkpoint_folder}/${script}" ${ARGN}
        $<TARGET_FILE:${victim}> ${KOLO_MPIRUN})
    kolo_set_mpirun_properties(${name} ${ranks} 300 SLEEPS)  # it waits for disks
    set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77)
  endfunction()
  kolo_add_checkpoint_test(checkpoint_python.plain python_test.py 3 checkpoint_writer plain)
  kolo_add_checkpoint_test(checkpoint_python.package python_test.py 3 checkpoint_writer package)
  if(TARGET kolo)
    kolo_test_executable(training_victim checkpoint/training_victim.cpp)
    target_link_libraries(training_victim PRIVATE kolo_kill_at kolo)
    kolo_precompile_torch(training_victim)
    set(kill kill_test.py)
    kolo_add_checkpoint_test(checkpoint_kill.calls.np1 ${kill} 1 training_victim calls)
    kolo_add_checkpoint_test(checkpoint_kill.calls.np2 ${kill} 2 training_victim
      --ranks 2 --every 10 calls)
    kolo_add_checkpoint_test(checkpoint_kill.moments.np1 ${kill} 1 training_victim
      --times 4 moments)
    kolo_add_checkpoint_test(checkpoint_kill.moments.np2 ${kill} 2 training_victim
      --ranks 2 --times 6 moments)
    set(jobs two_jobs_test.py)
    kolo_add_checkpoint_test(checkpoint_two_jobs.np1 ${jobs} 2 training_victim --rounds 12)
    kolo_add_checkpoint_test(checkpoint_two_jobs.np2 ${jobs} 4 training_victim
      --ranks 2 --rounds 4)
  endif()
endif()
