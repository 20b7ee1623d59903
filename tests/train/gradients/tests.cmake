# Tests of src/train/gradients and src/train/buckets, which build sooner than train_test. Paths are
# those of tests/CMakeLists.txt, which includes this file.
if(TARGET kolo)
  kolo_add_mpi_test(gradients_test
    SOURCES
      train/gradients/dropped_gradients_test.cpp
      train/gradients/gradient_access_test.cpp
      train/gradients/overlap_test.cpp
      train/gradients/program_gradients_test.cpp
      train/gradients/sparse_gradients_test.cpp
      train/gradients/steps_test.cpp
    LIBRARIES kolo)
  # Without shared memory: gradients in flight are those of messages.
  kolo_add_variant(gradients_test messages 3 300 ENVIRONMENT KOLO_SHARED_MEMORY=off)
  # Over communicators of the program's, of its even and its odd ranks, at the same time.
  kolo_add_variant(gradients_test groups 4 300 ENVIRONMENT KOLO_TEST_GROUPS=at_once)
endif()
