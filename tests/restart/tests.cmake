# Tests of kolo-restart. Paths are those of tests/CMakeLists.txt, which includes this file.

if(KOLO_SANITIZE)
  return()  # programs, not the library
endif()
set(restart_folder "${PROJECT_SOURCE_DIR}/examples")
kolo_add_test(restart_test
  SOURCES
    restart/cause_test.cpp
    restart/hosts_test.cpp
    restart/options_test.cpp
    restart/plan_test.cpp
    "${restart_folder}/common/exit.cpp"
    "${restart_folder}/common/mpirun.cpp"
    "${restart_folder}/restart/cause.cpp"
    "${restart_folder}/restart/hosts.cpp"
    "${restart_folder}/restart/launcher.cpp"
    "${restart_folder}/restart/options.cpp"
    "${restart_folder}/restart/plan.cpp"
  LIBRARIES CLI11::CLI11)
target_include_directories(restart_test PRIVATE "${restart_folder}")
if(KOLO_BUILD_EXAMPLES)
  add_test(NAME kolo-restart
    COMMAND Python3::Interpreter "${CMAKE_CURRENT_SOURCE_DIR}/restart/restart_test.py"
      $<TARGET_FILE:kolo-restart> ${KOLO_MPIRUN})
  kolo_set_mpirun_properties(kolo-restart 2 120 SLEEPS)
  add_test(NAME kolo-restart.fake_jobs
    COMMAND Python3::Interpreter "${CMAKE_CURRENT_SOURCE_DIR}/restart/fake_jobs_test.py"
      $<TARGET_FILE:kolo-restart>)
  kolo_set_mpirun_properties(kolo-restart.fake_jobs 1 120 SLEEPS)
endif()
if(KOLO_BUILD_EXAMPLES AND TARGET kolo)
  string(JOIN " " mpirun_command ${KOLO_MPIRUN})
  add_test(NAME kolo-restart.kill
    COMMAND Python3::Interpreter "${CMAKE_CURRENT_SOURCE_DIR}/restart/kill_test.py"
      --restart $<TARGET_FILE:kolo-restart> --mpirun "${mpirun_command}" --rounds 5
      --program "$<TARGET_FILE:11_survive_failures> {folder} 240")
  kolo_set_mpirun_properties(kolo-restart.kill 2 300)
  set_property(TEST kolo-restart.kill APPEND PROPERTY ENVIRONMENT KOLO_TEST_SEED=1)
endif()
