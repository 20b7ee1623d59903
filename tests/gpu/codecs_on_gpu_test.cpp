// Codecs on GPUs between processes, compared with the CPU; for a program whose tensors are on GPUs.
#include <gtest/gtest.h>

#include "kolo/runtime.hpp"
#include "mpi/runtime_variants.hpp"
#include "runtime/device/coded_twins.hpp"
#include "runtime/runtimes.hpp"

namespace kolo::test::codecs_on_gpu_test {

TEST(CodecsOnGpuTest, Results_HaveTheBitsOfTheCpu) {
  Runtime runtime({.config = config_of_ranks()});
  expect_coded_bits_of_the_cpu(runtime);
}

}  // namespace kolo::test::codecs_on_gpu_test
