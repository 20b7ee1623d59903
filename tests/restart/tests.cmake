if(KOLO_SANITIZE OR NOT KOLO_BUILD_EXAMPLES)
  return()  # a program, not the library
endif()
set(restart "${PROJECT_BINARY_DIR}/examples/kolo-restart")
kolo_add_script_test(kolo-restart.parts restart/parts_test.py ${restart})
kolo_add_script_test(kolo-restart restart/restart_test.py ${restart} ${KOLO_MPIRUN})
kolo_set_mpirun_properties(kolo-restart 2 120 SLEEPS)
kolo_add_script_test(kolo-restart.fake_jobs restart/fake_jobs_test.py ${restart})
kolo_set_mpirun_properties(kolo-restart.fake_jobs 1 120 SLEEPS)
if(TARGET kolo)
  string(JOIN " " mpirun_command ${KOLO_MPIRUN})
  add_test(NAME kolo-restart.kill
    COMMAND Python3::Interpreter "${CMAKE_CURRENT_SOURCE_DIR}/restart/kill_test.py"
      --restart ${restart} --mpirun "${mpirun_command}" --rounds 5
      --program "$<TARGET_FILE:11_survive_failures> {folder} 240")
  kolo_set_mpirun_properties(kolo-restart.kill 2 300)
  add_test(NAME kolo-restart.preempt
    COMMAND Python3::Interpreter "${CMAKE_CURRENT_SOURCE_DIR}/restart/kill_test.py"
      --restart ${restart} --mpirun "${mpirun_command}" --rounds 5 --preempt
      --program "$<TARGET_FILE:11_survive_failures> {folder} 240")
  kolo_set_mpirun_properties(kolo-restart.preempt 2 300)
  set_property(TEST kolo-restart.kill kolo-restart.preempt APPEND PROPERTY
    ENVIRONMENT KOLO_TEST_SEED=1)
endif()
