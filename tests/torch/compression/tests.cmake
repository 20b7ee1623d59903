# Tests of codecs in training. Paths are those of tests/CMakeLists.txt, which includes this file.
if(TARGET kolo)
  kolo_add_mpi_test(compression_test
    SOURCES
      torch/compression/coded_training_test.cpp
      torch/compression/error_feedback_test.cpp
      torch/compression/saved_residuals_test.cpp
    RANKS 2
    LIBRARIES kolo)
  kolo_add_mpi_test(between_nodes_training_test RANKS 1 3
    SOURCES torch/compression/between_nodes_training_test.cpp
    LIBRARIES kolo)
  foreach(ranks IN ITEMS 2 3 4)  # 1 + 1, 2 + 1 and 2 + 2 ranks on two nodes
    set(test between_nodes_training_test.nodes.np${ranks})
    kolo_add_mpirun_test(${test} ${ranks} 300 $<TARGET_FILE:between_nodes_training_test>)
    set_property(TEST ${test} APPEND PROPERTY ENVIRONMENT KOLO_FAKE_NODES=2)
  endforeach()
  # In other worlds, four ranks only what depends on their number; by messages, where Shard::Full
  # gathers on use; and on two nodes. Losses of long runs do not depend on these.
  set(long_runs *TrainsAs*)
  foreach(ranks IN ITEMS 1 3)
    kolo_add_mpirun_test(compression_test.np${ranks} ${ranks} 300 $<TARGET_FILE:compression_test>
      --gtest_filter=-${long_runs})
  endforeach()
  kolo_add_mpirun_test(compression_test.np4 4 300 $<TARGET_FILE:compression_test>
    --gtest_filter=*BytesEqual*:*OtherWorldSizes*:*AddUp*:*RanksThatJoin*)
  kolo_add_mpirun_test(compression_test.messages.np3 3 300 $<TARGET_FILE:compression_test>
    --gtest_filter=-*EveryMode*:${long_runs})
  set_property(TEST compression_test.messages.np3 APPEND PROPERTY ENVIRONMENT
    KOLO_SHARED_MEMORY=off)
  kolo_add_mpirun_test(compression_test.nodes.np4 4 300 $<TARGET_FILE:compression_test>
    --gtest_filter=NodeFeedback*:*EveryMode*:*OtherWorldSizes*:*IsWhatWasGiven*:*RanksThatJoin*)
  set_property(TEST compression_test.nodes.np4 APPEND PROPERTY ENVIRONMENT KOLO_FAKE_NODES=2)
endif()
