kolo_add_test(coordinator_test SOURCES
  runtime/protocol/bits_test.cpp
  runtime/protocol/coordinator_test.cpp
  runtime/protocol/deferred_errors_test.cpp
  runtime/protocol/header_test.cpp
  runtime/protocol/history_test.cpp
  runtime/protocol/negotiation_test.cpp
  ONE_THREAD
)
kolo_add_test(simulator_test SOURCES runtime/protocol/simulator_test.cpp LIBRARIES kolo_simulator
  TIMEOUT 600 ONE_THREAD)
kolo_test_executable(protocol_gate tools/protocol_gate.cpp)
target_link_libraries(protocol_gate PRIVATE kolo_simulator CLI11::CLI11)
kolo_add_test(build_info_test SOURCES runtime/api/build_info_test.cpp LIBRARIES MPI::MPI_C)
kolo_add_test(control_mailbox_test SOURCES runtime/control/control_mailbox_test.cpp)
kolo_add_test(engine_queues_test
  SOURCES runtime/data/point_to_point_test.cpp runtime/engine/batch_queue_test.cpp
    runtime/engine/tensor_queue_test.cpp)
kolo_add_test(lost_batches_test SOURCES runtime/engine/lost_batches_test.cpp)
kolo_add_test(window_header_exchange_test SOURCES runtime/control/window_header_exchange_test.cpp)
kolo_add_test(collectives_test SOURCES
  runtime/api/allreduce_test.cpp
  runtime/api/alltoall_test.cpp
  runtime/api/barrier_test.cpp
  runtime/api/codec_test.cpp
  runtime/api/collectives_test.cpp
  runtime/api/complex_test.cpp
  runtime/api/custom_reduction_test.cpp
  runtime/api/group_test.cpp
  runtime/api/messages_test.cpp
  runtime/api/node_outputs_test.cpp
  runtime/api/join_failure_test.cpp
  runtime/api/join_test.cpp
  runtime/api/process_set_errors_test.cpp
  runtime/api/process_set_independence_test.cpp
  runtime/api/matching_test.cpp
  runtime/api/process_set_store_test.cpp
  runtime/api/process_set_test.cpp
  runtime/api/reduce_scatter_test.cpp
  TIMEOUT 600
  SHARDS 4
)
if(NOT KOLO_SANITIZE)
  # Replaces operator new, as sanitizers do.
  kolo_add_test(memory_test SOURCES runtime/api/memory_test.cpp)
endif()
# These use thousands of headers and names: slow under ThreadSanitizer, without finding more.
set(counting_tests runtime/api/cost_test.cpp runtime/api/many_names_test.cpp)
if("${KOLO_SANITIZE}" STREQUAL "thread")
  set(counting_tests "")
endif()
kolo_add_test(runtime_test SOURCES
  ${counting_tests}
  runtime/api/agreement_test.cpp
  runtime/api/callback_test.cpp
  runtime/data/set_context_test.cpp
  runtime/api/denormals_test.cpp
  runtime/api/handle_test.cpp
  runtime/engine/engine_end_test.cpp
  runtime/engine/engine_test.cpp
  runtime/api/insight_test.cpp
  runtime/api/lifecycle_test.cpp
  runtime/api/memory_overlap_test.cpp
  runtime/control/lost_host_test.cpp
  runtime/control/loss_test.cpp
  runtime/api/invalid_request_test.cpp
  runtime/api/mismatch_test.cpp
  runtime/api/objects_test.cpp
  runtime/api/shared_buffer_test.cpp
  runtime/api/shared_collectives_error_test.cpp
  runtime/api/shared_collectives_test.cpp
  runtime/api/timeout_test.cpp
  LIBRARIES nlohmann_json::nlohmann_json
  TIMEOUT 600
  SHARDS 3
)
kolo_add_test(heartbeats_test
  SOURCES runtime/control/heartbeats_test.cpp runtime/control/loss_watch_test.cpp ONE_THREAD)
kolo_add_test(tree_header_exchange_test
  SOURCES runtime/control/tree_header_exchange_test.cpp ONE_THREAD)
kolo_add_test(wire_test SOURCES runtime/control/wire_test.cpp ONE_THREAD)
# What is launched on GPUs, when, and in which order.
kolo_add_test(device_test SOURCES
  runtime/device/device_buffers_test.cpp
  runtime/device/device_errors_test.cpp
  runtime/device/device_exchange_test.cpp
  runtime/device/device_groups_test.cpp
  runtime/device/device_life_test.cpp
  runtime/device/device_order_test.cpp
  runtime/device/device_test.cpp
  TIMEOUT 600
  SHARDS 2
)
