if(TARGET kolo)
  kolo_add_test(training_parts_test
    SOURCES
      train/buckets/bucket_plan_test.cpp
      train/gradients/arrivals_test.cpp
      train/optimizer/call_rules_test.cpp
      extras/power_sgd/orthonormal_test.cpp
      train/sharding/unit_plan_test.cpp
      train/sharding/use_order_test.cpp
    LIBRARIES kolo_extras nlohmann_json::nlohmann_json
    ONE_THREAD)
  target_compile_definitions(training_parts_test
    PRIVATE KOLO_SOURCE_FOLDER="${PROJECT_SOURCE_DIR}")
  add_executable(bfloat16_rounding tools/bfloat16_rounding.cpp)
  kolo_configure_target(bfloat16_rounding)
  kolo_internal_includes(bfloat16_rounding)
  target_link_libraries(bfloat16_rounding PRIVATE kolo)
  add_test(NAME bfloat16_rounding COMMAND bfloat16_rounding 4099)
  kolo_label_torch(bfloat16_rounding bfloat16_rounding)
  add_executable(optimizer_memory tools/optimizer_memory.cpp)
  kolo_configure_target(optimizer_memory)
  target_include_directories(optimizer_memory PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}")
  target_link_libraries(optimizer_memory PRIVATE kolo)
  if(NOT KOLO_SANITIZE)
    foreach(mode IN ITEMS none optimizer gradients full)
      kolo_add_mpirun_test(
        optimizer_memory.${mode} 2 300 $<TARGET_FILE:optimizer_memory> ${mode} 60)
    endforeach()
  endif()
  kolo_add_mpi_test(power_sgd_test
    SOURCES
      extras/power_sgd/power_sgd_state_test.cpp
      extras/power_sgd/power_sgd_test.cpp
    LIBRARIES kolo_extras)
  kolo_add_mpi_test(train_test
    SOURCES
      train/checkpoint/background_save_test.cpp
      train/checkpoint/changed_programs_test.cpp
      train/checkpoint/checkpoint_damage.cpp
      train/checkpoint/checkpoint_files_test.cpp
      train/checkpoint/damaged_training_test.cpp
      train/checkpoint/forged_checkpoint_test.cpp
      train/checkpoint/odd_tensors_test.cpp
      train/checkpoint/training_checkpoint_test.cpp
      train/optimizer/calls_in_states_test.cpp
      train/optimizer/complex_parameters_test.cpp
      train/optimizer/distributed_optimizer_test.cpp
      train/optimizer/grad_scaler_misuse_test.cpp
      train/optimizer/grad_scaler_steps_test.cpp
      train/optimizer/grad_scaler_test.cpp
      train/optimizer/long_parameter_test.cpp
      train/optimizer/optimizer_join_test.cpp
      train/optimizer/optimizer_options_test.cpp
      train/optimizer/optimizer_parameters_test.cpp
      train/optimizer/training_report_test.cpp
      train/sharding/checkpointed_models_test.cpp
      train/sharding/frozen_checkpoints_test.cpp
      train/sharding/frozen_parameters_test.cpp
      train/sharding/full_sharding_test.cpp
      train/sharding/gathered_frozen_test.cpp
      train/sharding/gathered_units_test.cpp
      train/sharding/node_slots_test.cpp
      train/sharding/precision_test.cpp
      train/sharding/released_parameters_test.cpp
      train/sharding/sharded_guards_test.cpp
      train/sharding/sharded_memory_test.cpp
      train/sharding/sharded_optimizer_test.cpp
      train/sharding/sharded_ranks_test.cpp
      train/sharding/sharded_training_test.cpp
      train/sharding/sharded_traps_test.cpp
      train/sharding/unit_policy_test.cpp
      train/tensors/activation_checkpoint_test.cpp
      train/tensors/autocast_test.cpp
      train/tensors/autograd_test.cpp
      train/tensors/broadcast_test.cpp
      train/tensors/complex_test.cpp
      train/tensors/deferred_test.cpp
      train/tensors/model_dtype_test.cpp
      train/tensors/parameter_sync_test.cpp
      train/tensors/reductions_test.cpp
      train/tensors/rows_test.cpp
      train/tensors/shared_tensor_test.cpp
      train/tensors/sparse_test.cpp
      train/tensors/tensor_errors_test.cpp
      train/wrapped/fused_test.cpp
      train/wrapped/option_sync_test.cpp
    RANKS 2
    TIMEOUT 900
    LIBRARIES kolo)
  add_library(kolo_random_training STATIC
    train/random/calls.cpp
    train/random/model.cpp
    train/random/plan.cpp
    train/random/program.cpp
    train/random/rank.cpp
    train/random/reference.cpp
    train/random/run.cpp
  )
  kolo_configure_target(kolo_random_training)
  kolo_internal_includes(kolo_random_training)
  kolo_compile_quickly(kolo_random_training)
  target_include_directories(kolo_random_training PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}")
  target_link_libraries(kolo_random_training PUBLIC kolo_test_support kolo_extras)
  kolo_precompile_torch(kolo_random_training)
  kolo_test_executable(training_gate tools/training_gate.cpp)
  target_link_libraries(training_gate PRIVATE kolo_random_training CLI11::CLI11)
  kolo_precompile_torch(training_gate)
  kolo_add_test(random_training_test SOURCES train/random/random_training_test.cpp
    LIBRARIES kolo_random_training kolo SHARDS 2 SHORT)
  kolo_add_mpi_test(random_copy_test SOURCES train/random/random_copy_test.cpp RANKS 2 3
    LIBRARIES kolo_random_training kolo)
  add_test(NAME random_training_alphabet COMMAND Python3::Interpreter
    "${CMAKE_CURRENT_SOURCE_DIR}/train/random/alphabet_test.py")
  kolo_add_mpi_test(training_steps_test
    SOURCES
      train/optimizer/ended_runtime_test.cpp
      train/optimizer/local_steps_test.cpp
      train/optimizer/loss_normalization_test.cpp
      train/optimizer/rank_comparison_test.cpp
      train/optimizer/replica_check_test.cpp
    LIBRARIES kolo_extras)
  if(NOT LibTorch_torch_cuda_LIBRARY)
    # Replaces LibTorch's CUDA library on the fake GPUs; only CUDA's headers are needed.
    add_library(kolo_fake_cuda STATIC
      support/gpu/fake_cuda/allocator.cpp
      support/gpu/fake_cuda/boxed_call.cpp
      support/gpu/fake_cuda/byte_runs.cpp
      support/gpu/fake_cuda/cpu_twins.cpp
      support/gpu/fake_cuda/device.cpp
      support/gpu/fake_cuda/guard.cpp
      support/gpu/fake_cuda/hooks.cpp
      support/gpu/fake_cuda/operator_traits.cpp
      support/gpu/fake_cuda/operators.cpp
    )
    kolo_configure_target(kolo_fake_cuda)
    kolo_internal_includes(kolo_fake_cuda)
    target_include_directories(kolo_fake_cuda PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}")
    target_compile_definitions(kolo_fake_cuda PRIVATE NDEBUG)  # as kolo, for LibTorch's headers
    target_link_libraries(kolo_fake_cuda PUBLIC kolo_test_support LibTorch::LibTorch)
    kolo_add_test(cuda_tensor_test
      SOURCES
        train/cuda/cuda_activation_checkpoint_test.cpp
        train/cuda/cuda_checkpoint_test.cpp
        train/cuda/cuda_collectives_test.cpp
        train/cuda/cuda_optimizer_test.cpp
        train/cuda/cuda_streams_test.cpp
        train/cuda/cuda_sync_batch_norm_test.cpp
        train/cuda/cuda_units_test.cpp
        train/cuda/fake_cuda_order_test.cpp
        train/cuda/fake_cuda_test.cpp
      LIBRARIES kolo_fake_cuda kolo_extras)
    if(KOLO_BUILD_EXAMPLES)  # the table of docs/gpu.md
      add_executable(gpu_calls tools/gpu_calls.cpp)
      kolo_configure_target(gpu_calls)
      kolo_internal_includes(gpu_calls)
      target_include_directories(gpu_calls PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}")
      target_link_libraries(gpu_calls PRIVATE kolo_fake_cuda kolo_example_models kolo GTest::gtest)
    endif()
    kolo_add_test(cuda_accelerator_test SOURCES train/cuda/cuda_accelerator_test.cpp
      LIBRARIES kolo_fake_cuda kolo_extras)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      # g++ wrongly reports values of LibTorch's data loaders as uninitialized.
      target_compile_options(cuda_accelerator_test PRIVATE -Wno-maybe-uninitialized)
    endif()
    kolo_add_test(cuda_c10d_test
      SOURCES extras/c10d/cuda_backend_test.cpp LIBRARIES kolo_fake_cuda kolo_extras SHORT)
  endif()
  # One rank: what is left out where no rank must be waited for, and must still convert, average and
  # wait for the program's own work.
  kolo_add_variant(train_test alone 1 900)
  # Three ranks: shards of different lengths, ranks without elements, averages that round.
  kolo_add_variant(train_test uneven 3 900)
  # Without shared memory: Shard::Full gathers units; there are no windows.
  kolo_add_variant(train_test messages 3 900 ENVIRONMENT KOLO_SHARED_MEMORY=off)
  # Two nodes of two ranks: one copy, one slot and one replica a node, and shards between nodes.
  # Sums are in rank order, so that all modes give the same bits.
  set(nodes KOLO_FAKE_NODES=2 KOLO_ALGORITHM=allreduce:direct,reduce_scatter:direct)
  kolo_add_variant(train_test nodes 4 900 ENVIRONMENT ${nodes})
  # Over communicators of the program's, of its even and its odd ranks, at the same time: ranks and
  # messages of another group, or of the whole program. One group after the other
  # (KOLO_TEST_GROUPS=in_turn) by hand.
  kolo_add_variant(train_test groups 4 900 ENVIRONMENT KOLO_TEST_GROUPS=at_once)
  # Owners of whole tensors: in one copy, and gathered with one copy per node.
  kolo_add_mpi_test(whole_tensors_test SOURCES train/sharding/whole_tensors_test.cpp
    LIBRARIES kolo_extras)
  kolo_add_variant(whole_tensors_test messages 3 300 ENVIRONMENT KOLO_SHARED_MEMORY=off)
  kolo_add_variant(whole_tensors_test nodes 4 300 ENVIRONMENT ${nodes})
  # Whole models, for fifty steps: in one copy of uneven shards; and where nodes gather.
  kolo_add_mpi_test(sharded_models_test
    SOURCES train/sharding/sharded_models_test.cpp RANKS 3 TIMEOUT 900 LIBRARIES kolo)
  kolo_add_variant(sharded_models_test nodes 4 900 ENVIRONMENT ${nodes})
  # The matrix of checkpoints, in fresh processes.
  if(NOT KOLO_SANITIZE)
    kolo_test_executable(resume_matrix train/checkpoint/resume_matrix.cpp)
    target_link_libraries(resume_matrix PRIVATE kolo_test_mpi_main kolo)
    kolo_precompile_torch(resume_matrix)
    foreach(variant shared messages)
      add_test(NAME resume_matrix.${variant} COMMAND Python3::Interpreter
        "${CMAKE_CURRENT_SOURCE_DIR}/train/checkpoint/resume_test.py" $<TARGET_FILE:resume_matrix>
        ${KOLO_MPIRUN})
      kolo_set_mpirun_properties(resume_matrix.${variant} 3 600)
    endforeach()
    set_property(TEST resume_matrix.messages APPEND PROPERTY ENVIRONMENT
      KOLO_SHARED_MEMORY=off KOLO_TEST_VARIANT=messages)
  endif()
  kolo_add_mpi_test(gradients_test
    SOURCES
      train/gradients/gradient_access_test.cpp
      train/gradients/overlap_test.cpp
      train/gradients/program_gradients_test.cpp
      train/gradients/sparse_gradients_test.cpp
      train/gradients/steps_test.cpp
    LIBRARIES kolo)
  # Over communicators of the program's, of its even and its odd ranks, at the same time.
  kolo_add_variant(gradients_test groups 4 300 ENVIRONMENT KOLO_TEST_GROUPS=at_once)
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
