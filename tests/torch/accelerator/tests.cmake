# Tests of the Accelerator. Paths are those of tests/CMakeLists.txt, which includes this file.

if(TARGET kolo)
  kolo_add_test(progress_bar_test SOURCES torch/accelerator/progress_bar_test.cpp
    LIBRARIES kolo_extras
    ONE_THREAD)
  kolo_add_mpi_test(accelerator_test
    SOURCES
      torch/accelerator/accelerator_batches_test.cpp
      torch/accelerator/accelerator_errors_test.cpp
      torch/accelerator/accelerator_models_test.cpp
      torch/accelerator/accelerator_schedules_test.cpp
      torch/accelerator/accelerator_state_test.cpp
      torch/accelerator/accelerator_test.cpp
    LIBRARIES kolo_extras)
endif()
