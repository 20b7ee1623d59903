kolo_add_test(kernels_test SOURCES ops/kernels_test.cpp LIBRARIES hwy::hwy ONE_THREAD)
kolo_add_test(adasum_test SOURCES ops/adasum_kernels_test.cpp ops/adasum_test.cpp)
kolo_add_test(algorithms_test
  SOURCES
    ops/algorithms_test.cpp
    ops/compressed_reductions_test.cpp
    ops/traffic_test.cpp
    ops/window_segments_test.cpp
  TIMEOUT 300
  SHARDS 2)
kolo_add_test(between_nodes_test
  SOURCES ops/between_nodes_test.cpp runtime/api/compression_scope_test.cpp)
kolo_add_test(hierarchical_test SOURCES ops/contract_test.cpp ops/hierarchical_test.cpp
              ops/sub_communicator_test.cpp)
kolo_add_test(reduction_plan_test SOURCES ops/reduction_plan_test.cpp ONE_THREAD)
kolo_add_test(select_test SOURCES ops/select_test.cpp ONE_THREAD)
kolo_add_test(window_slots_test SOURCES ops/window_slots_test.cpp)
