# Tests of the c10d backend. Paths are those of tests/CMakeLists.txt, which includes this file.

if(TARGET kolo)
  kolo_add_mpi_test(c10d_test SOURCES extras/c10d/backend_test.cpp LIBRARIES kolo_extras SHORT)
  kolo_add_variant(c10d_test messages 3 300 ENVIRONMENT KOLO_SHARED_MEMORY=off)
endif()
