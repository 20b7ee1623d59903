if(KOLO_BUILD_EXAMPLES)
  kolo_add_test(bench_test
    SOURCES
      examples/bench/device_test.cpp
      examples/bench/measure_test.cpp
      examples/bench/statistics_test.cpp
      examples/bench/values_test.cpp
    LIBRARIES kolo_bench_control)
  if(NOT KOLO_SANITIZE)
    kolo_add_script_test(kolo-bench examples/bench/kolo_bench_test.py
      $<TARGET_FILE:kolo-bench> ${KOLO_MPIRUN} ${MPIEXEC_NUMPROC_FLAG})
    kolo_set_mpirun_properties(kolo-bench 3 120)
    kolo_add_script_test(kolo-bench.ends examples/bench/kolo_bench_ends_test.py
      $<TARGET_FILE:kolo-bench> ${KOLO_MPIRUN} ${MPIEXEC_NUMPROC_FLAG})
    kolo_set_mpirun_properties(kolo-bench.ends 3 120)
    kolo_add_script_test(bench_script examples/bench_script_test.py $<TARGET_FILE:kolo-bench>)
    kolo_set_mpirun_properties(bench_script 2 120)
    kolo_add_script_test(gpu_scripts examples/gpu_scripts_test.py)
  endif()
  # kolo_add_example_test(<case of numbered_examples_test.py>): on 1, 2 and 3 ranks.
  function(kolo_add_example_test case)
    kolo_add_script_test(example.${case} examples/numbered_examples_test.py
      $<TARGET_FILE_DIR:01_hello_allreduce> ${case} ${KOLO_MPIRUN} ${MPIEXEC_NUMPROC_FLAG})
    kolo_set_mpirun_properties(example.${case} 3 120)
  endfunction()
  kolo_add_example_test(HelloAllreduce)
  kolo_add_example_test(OwnAlgorithm)
  kolo_add_example_test(OwnCodec)
  if(TARGET kolo)
    kolo_add_script_test(train_gpt examples/train_gpt_test.py
      $<TARGET_FILE:train_gpt> ${KOLO_MPIRUN} ${MPIEXEC_NUMPROC_FLAG})
    kolo_set_mpirun_properties(train_gpt 4 600)
    foreach(case IN ITEMS HelloTensors Asynchronous WrapOptimizer Pretrained InsideASimulation)
      kolo_add_example_test(${case})
    endforeach()
    kolo_add_script_test(train_accelerated examples/train_accelerated_test.py
      $<TARGET_FILE:train_accelerated> ${KOLO_MPIRUN} ${MPIEXEC_NUMPROC_FLAG})
    kolo_set_mpirun_properties(train_accelerated 3 120)
    kolo_add_script_test(train_mnist examples/train_mnist_test.py
      $<TARGET_FILE:train_mnist> ${KOLO_MPIRUN} ${MPIEXEC_NUMPROC_FLAG})
    kolo_set_mpirun_properties(train_mnist 3 300)
    kolo_add_script_test(shard_benchmark examples/shard_benchmark_test.py
      $<TARGET_FILE:shard_benchmark> ${KOLO_MPIRUN} ${MPIEXEC_NUMPROC_FLAG})
    kolo_set_mpirun_properties(shard_benchmark 4 600)
    kolo_add_script_test(compare_compression examples/compare_compression_test.py
      $<TARGET_FILE:compare_compression> ${KOLO_MPIRUN} ${MPIEXEC_NUMPROC_FLAG})
    kolo_set_mpirun_properties(compare_compression 3 120)
    kolo_add_script_test(compare_sharding examples/compare_sharding_test.py
      $<TARGET_FILE:compare_sharding> ${KOLO_MPIRUN} ${MPIEXEC_NUMPROC_FLAG})
    kolo_set_mpirun_properties(compare_sharding 2 300)
    add_test(NAME failure.full_memory
      COMMAND Python3::Interpreter "${CMAKE_CURRENT_SOURCE_DIR}/failure/full_memory_test.py"
        $<TARGET_FILE:train_gan> $<TARGET_FILE:synthetic_benchmark> $<TARGET_FILE:kolo-bench>
        ${KOLO_MPIRUN} ${MPIEXEC_NUMPROC_FLAG} 2)
    kolo_set_mpirun_properties(failure.full_memory 2 300)
    set_tests_properties(failure.full_memory PROPERTIES SKIP_RETURN_CODE 77)
  endif()
endif()
