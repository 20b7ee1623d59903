// The kernels' code, run on the CPU: the elements that are converted, their targets and dtypes.
#include <gtest/gtest.h>

#include "gpu/conversion_cases.hpp"
#include "gpu/convert_on_cpu.hpp"

namespace kolo::test::convert_kernel_test {

HostConvert with_blocks(std::uint64_t blocks) {
  return
      [=](std::span<const comm::DeviceRun> runs, std::span<const std::byte>, std::span<std::byte>,
          comm::DeviceConversion conversion) { convert_on_cpu(runs, conversion, blocks); };
}

TEST(ConvertKernelTest, ConvertsAsTheCpuDoes) { expect_converted_as_on_the_cpu(with_blocks(2112)); }

TEST(ConvertKernelTest, ConvertsInPlace) { expect_converted_in_place(with_blocks(11)); }

TEST(ConvertKernelTest, ConvertsMoreRunsThanOneLaunchTakes) {
  expect_many_runs_converted(with_blocks(3));
}

}  // namespace kolo::test::convert_kernel_test
