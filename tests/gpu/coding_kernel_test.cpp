// The kernels for codecs, run on the CPU, compared with the codecs for the CPU.
#include <cstddef>
#include <string>

#include <gtest/gtest.h>

#include "gpu/coding_on_cpu.hpp"
#include "kolo/error.hpp"
#include "ops/kernels/coded_table.hpp"

namespace kolo::test::coding_kernel_test {

class CodingKernelTest : public testing::TestWithParam<bool> {
 protected:
  CodingOnCpu operations_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(, CodingKernelTest, testing::Bool(), [](const auto& tried) {
  return std::string(tried.param ? "ThreadsBackwards" : "ThreadsInOrder");
});

TEST_P(CodingKernelTest, EncodesAsTheCpuDoes) { coding::expect_encoded_as_on_the_cpu(operations_); }

TEST_P(CodingKernelTest, DecodesAsTheCpuDoes) { coding::expect_decoded_as_on_the_cpu(operations_); }

TEST_P(CodingKernelTest, AddsUpPayloadsAsTheCpuDoes) {
  coding::expect_payloads_added_as_on_the_cpu(operations_);
}

TEST_P(CodingKernelTest, EncodesMoreRunsThanOneLaunchTakes) {
  coding::expect_many_runs_encoded(operations_);
}

TEST(CodingCheckTest, WhatNoKernelTakes_IsRefused) {
  alignas(8) std::byte memory[64]{};
  const auto text_of = [&](DType dtype, std::size_t from, std::size_t to) {
    const comm::CodedRun run{memory + from, memory + to, 4};
    try {
      ops::check_encoding({&run, 1}, dtype);
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(text_of(DType::Float16, 2, 32), "");
  EXPECT_EQ(text_of(DType::Int32, 0, 32), "GPU codec of int32: expected a floating type");
  EXPECT_NE(text_of(DType::Float32, 2, 32).find("lie between them"), std::string::npos);
  EXPECT_NE(text_of(DType::Float32, 0, 34).find("begin at 4-byte words"), std::string::npos);
}

}  // namespace kolo::test::coding_kernel_test
