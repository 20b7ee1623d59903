if(TARGET kolo)
  kolo_add_test(progress_bar_test SOURCES extras/accelerator/progress_bar_test.cpp
    LIBRARIES kolo_extras
    ONE_THREAD)
  kolo_add_test(own_optimizers_test SOURCES extras/own_optimizers_test.cpp LIBRARIES kolo_extras)
  kolo_add_mpi_test(accelerator_test
    SOURCES
      extras/accelerator/accelerator_batches_test.cpp
      extras/accelerator/accelerator_errors_test.cpp
      extras/accelerator/accelerator_models_test.cpp
      extras/accelerator/accelerator_schedules_test.cpp
      extras/accelerator/accelerator_state_test.cpp
      extras/accelerator/accelerator_test.cpp
    LIBRARIES kolo_extras)
  kolo_add_mpi_test(c10d_test SOURCES extras/c10d/backend_test.cpp LIBRARIES kolo_extras SHORT)
  kolo_add_variant(c10d_test messages 3 300 ENVIRONMENT KOLO_SHARED_MEMORY=off)
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
