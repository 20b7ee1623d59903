# Tests of src/train/gradients and src/train/buckets, which build sooner than train_test. Paths are
# those of tests/CMakeLists.txt, which includes this file.
if(TARGET kolo)
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
endif()
