# Tests of compression between nodes only. Included by tests/CMakeLists.txt, to which paths are
# relative.
kolo_add_test(between_nodes_test
  SOURCES ops/between_nodes_test.cpp runtime/api/compression_scope_test.cpp)
