# Tests of codecs in training. Paths are those of tests/CMakeLists.txt, which includes this file.
if(TARGET kolo)
  kolo_add_mpi_test(compression_test
    SOURCES
      train/compression/coded_training_test.cpp
      train/compression/error_feedback_test.cpp
      train/compression/saved_residuals_test.cpp
    RANKS 2
    LIBRARIES kolo)
  # One rank: what it would send is its own, and must be rounded, or left, all the same.
  kolo_add_variant(compression_test alone 1 300)
  # Shards of different lengths: pieces of payloads, residuals of ranks that have no elements.
  kolo_add_variant(compression_test uneven 3 300)
  # Shard::Full gathers on use, and codecs send to each rank by itself.
  kolo_add_variant(compression_test messages 3 300 ENVIRONMENT KOLO_SHARED_MEMORY=off)
  # Shards of a node: residuals for their replicas.
  kolo_add_variant(compression_test nodes 4 300 ENVIRONMENT KOLO_FAKE_NODES=2)
  # One node: nothing is compressed.
  kolo_add_mpi_test(between_nodes_training_test RANKS 3
    SOURCES train/compression/between_nodes_training_test.cpp
    LIBRARIES kolo_extras)
  # Nodes of one rank, on which nothing is added up before; of different numbers of ranks; and of
  # two ranks each, whose sums between nodes are shared.
  foreach(ranks IN ITEMS 2 3 4)
    kolo_add_variant(between_nodes_training_test nodes ${ranks} 300
      ENVIRONMENT KOLO_FAKE_NODES=2)
  endforeach()
endif()
