# Tests of the Accelerator. Paths are those of tests/CMakeLists.txt, which includes this file.

if(TARGET kolo)
  kolo_add_test(progress_bar_test SOURCES extras/accelerator/progress_bar_test.cpp
    LIBRARIES kolo_extras
    ONE_THREAD)
  kolo_add_mpi_test(accelerator_test
    SOURCES
      extras/accelerator/accelerator_batches_test.cpp
      extras/accelerator/accelerator_errors_test.cpp
      extras/accelerator/accelerator_models_test.cpp
      extras/accelerator/accelerator_schedules_test.cpp
      extras/accelerator/accelerator_state_test.cpp
      extras/accelerator/accelerator_test.cpp
    LIBRARIES kolo_extras)
endif()
