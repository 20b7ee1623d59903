# Tests of data sharding. Paths are those of tests/CMakeLists.txt, which includes this file.

if(TARGET kolo)
  kolo_add_test(data_order_test
    SOURCES
      extras/data/epoch_order_test.cpp
      extras/data/sample_sequence_test.cpp
      extras/data/stream_position_test.cpp
    LIBRARIES kolo_extras nlohmann_json::nlohmann_json
    ONE_THREAD)
  kolo_add_mpi_test(data_test
    SOURCES
      extras/data/data_loader_test.cpp
      extras/data/gather_for_metrics_test.cpp
    LIBRARIES kolo_extras)
endif()
