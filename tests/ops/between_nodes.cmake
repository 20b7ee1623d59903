# Tests of compression between nodes alone. Paths are those of tests/CMakeLists.txt, which includes
# this file.
kolo_add_test(between_nodes_test
  SOURCES ops/between_nodes_test.cpp runtime/api/compression_scope_test.cpp)
