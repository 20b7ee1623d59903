# Tests of SyncBatchNorm. Paths are those of tests/CMakeLists.txt, which includes this file.

if(TARGET kolo)
  kolo_add_mpi_test(sync_batch_norm_test
    SOURCES
      extras/modules/convert_sync_batch_norm_test.cpp
      extras/modules/sync_batch_norm_errors_test.cpp
      extras/modules/sync_batch_norm_test.cpp
      extras/modules/sync_batch_norm_training_test.cpp
    LIBRARIES kolo_extras)
  # Shard::Full gathers units where ranks share no memory, in between the module's reductions.
  kolo_add_variant(sync_batch_norm_test messages 3 300 ENVIRONMENT KOLO_SHARED_MEMORY=off)
endif()
