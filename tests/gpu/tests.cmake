# Tests of CUDA and NCCL. Paths are those of tests/CMakeLists.txt, which includes this file.

# Drawing random elements takes most of these tests' time without optimization.
set_source_files_properties(gpu/conversion_cases.cpp PROPERTIES COMPILE_OPTIONS -O2)
kolo_add_test(thread_communicator_test
  SOURCES gpu/fake_thread_worlds.cpp gpu/thread_communicator_test.cpp
  runtime/api/group_test.cpp
  runtime/device/device_buffers_test.cpp)
if(KOLO_CUDA)
  # Ranks as threads on one real GPU: what these suites do on fake GPUs, they do on it.
  kolo_add_test(thread_gpu_test
    SOURCES gpu/cuda_thread_worlds.cpp gpu/thread_communicator_test.cpp
    runtime/api/allreduce_test.cpp
    runtime/api/alltoall_test.cpp
    runtime/api/collectives_test.cpp
    runtime/api/group_test.cpp
    runtime/api/join_test.cpp
    runtime/api/process_set_independence_test.cpp
    runtime/api/process_set_test.cpp
    runtime/api/reduce_scatter_test.cpp
    runtime/device/device_buffers_test.cpp
    runtime/device/device_exchange_test.cpp
    runtime/device/device_test.cpp
    LIBRARIES CUDA::cudart
    TIMEOUT 600)
  set_property(TEST thread_gpu_test APPEND PROPERTY LABELS gpu)
  set_property(TEST thread_gpu_test PROPERTY SKIP_RETURN_CODE 77)
  kolo_add_test(nccl_test SOURCES gpu/nccl_communicator_test.cpp gpu/nccl_types_test.cpp
    LIBRARIES CUDA::cudart NCCL::NCCL)
  kolo_add_test(cuda_gpu_test
    SOURCES gpu/conversion_cases.cpp gpu/cuda_gpu_test.cpp gpu/cuda_gpus_test.cpp
    gpu/cuda_kernels_test.cpp gpu/vector_cases.cpp
    LIBRARIES CUDA::cudart NCCL::NCCL)
  set_property(TEST nccl_test cuda_gpu_test APPEND PROPERTY LABELS gpu)
  if(NOT KOLO_SANITIZE)
    kolo_add_mpi_test(runtime_gpu_test
      SOURCES gpu/tensors_on_gpu.cpp mpi/process_sets_mpi_test.cpp mpi/runtime_errors_mpi_test.cpp
      mpi/runtime_mpi_test.cpp mpi/runtime_over_mpi_test.cpp
      LIBRARIES CUDA::cudart
      TIMEOUT 900)  # a Runtime and several communicators for each test, on a GPU that ranks share
    foreach(ranks IN ITEMS 1 2 3)
      set_property(TEST runtime_gpu_test.np${ranks} APPEND PROPERTY LABELS gpu)
      set_property(TEST runtime_gpu_test.np${ranks} APPEND PROPERTY ENVIRONMENT KOLO_SHARE_GPU=on)
      set_property(TEST runtime_gpu_test.np${ranks} PROPERTY SKIP_RETURN_CODE 77)
    endforeach()
  endif()
  kolo_add_test(convert_kernel_test
    SOURCES gpu/conversion_cases.cpp gpu/convert_kernel_test.cpp gpu/convert_on_cpu.cu
    LIBRARIES CUDA::cudart)
  kolo_add_test(vector_kernel_test
    SOURCES gpu/vector_cases.cpp gpu/vector_kernel_test.cpp gpu/vectors_on_cpu.cu
    LIBRARIES CUDA::cudart)
  add_executable(convert_bandwidth
    tools/convert_bandwidth.cpp "${PROJECT_SOURCE_DIR}/examples/bench/model_gradients.cpp")
  kolo_configure_target(convert_bandwidth)
  kolo_internal_includes(convert_bandwidth)
  target_include_directories(convert_bandwidth PRIVATE "${PROJECT_SOURCE_DIR}/examples")
  target_link_libraries(convert_bandwidth PRIVATE kolo_core CUDA::cudart NCCL::NCCL)
endif()
