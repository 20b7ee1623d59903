# Tests of data sharding. Paths are those of tests/CMakeLists.txt, which includes this file.

# Orders and positions need no LibTorch.
kolo_add_test(data_order_test
  SOURCES
    torch/data/epoch_order_test.cpp
    torch/data/sample_sequence_test.cpp
    torch/data/stream_position_test.cpp
    "${PROJECT_SOURCE_DIR}/src/torch/checkpoint/printable.cpp"
    "${PROJECT_SOURCE_DIR}/src/torch/data/epoch_order.cpp"
    "${PROJECT_SOURCE_DIR}/src/torch/data/read_state.cpp"
    "${PROJECT_SOURCE_DIR}/src/torch/data/sample_sequence.cpp"
    "${PROJECT_SOURCE_DIR}/src/torch/data/stream_position.cpp"
  LIBRARIES nlohmann_json::nlohmann_json
  ONE_THREAD)
if(TARGET kolo)
  kolo_add_mpi_test(data_test
    SOURCES
      torch/data/data_loader_test.cpp
      torch/data/gather_for_metrics_test.cpp
    LIBRARIES kolo)
endif()
