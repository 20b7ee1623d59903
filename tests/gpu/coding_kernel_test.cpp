// The kernels' code for codecs, run on the CPU, against the codecs of the CPU.
#include <gtest/gtest.h>

#include "gpu/coding_on_cpu.hpp"

namespace kolo::test::coding_kernel_test {

class CodingKernelTest : public testing::TestWithParam<bool> {
 protected:
  CodingOnCpu operations_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(, CodingKernelTest, testing::Bool(), [](const auto& tried) {
  return std::string(tried.param ? "ThreadsBackwards" : "ThreadsInOrder");
});

TEST_P(CodingKernelTest, EncodesAsTheCpuDoes) { expect_encoded_as_on_the_cpu(operations_); }

TEST_P(CodingKernelTest, DecodesAsTheCpuDoes) { expect_decoded_as_on_the_cpu(operations_); }

TEST_P(CodingKernelTest, AddsUpPayloadsAsTheCpuDoes) {
  expect_payloads_added_as_on_the_cpu(operations_);
}

TEST_P(CodingKernelTest, EncodesMoreRunsThanOneLaunchTakes) {
  expect_many_runs_encoded(operations_);
}

}  // namespace kolo::test::coding_kernel_test
