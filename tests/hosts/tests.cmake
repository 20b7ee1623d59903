# Two hosts, simulated by namespaces of this machine; skipped without permission to create them.
list(GET KOLO_MPIRUN 0 launcher)
kolo_add_script_test(hosts hosts/hosts_test.py "${CMAKE_CURRENT_BINARY_DIR}" "${launcher}")
kolo_set_mpirun_properties(hosts 4 240)
if(KOLO_UCX_INCLUDE_DIR)
  kolo_add_script_test(hosts.without_mpi hosts/hosts_test.py --without-mpi
    "${CMAKE_CURRENT_BINARY_DIR}" "${launcher}")
  kolo_set_mpirun_properties(hosts.without_mpi 4 240)
  set_tests_properties(hosts.without_mpi PROPERTIES SKIP_RETURN_CODE 77)
endif()
set_tests_properties(hosts PROPERTIES SKIP_RETURN_CODE 77)
