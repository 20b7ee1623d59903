// The kernels' code, run on the CPU: the elements that are added, and their order.
#include <gtest/gtest.h>

#include "gpu/vectors_on_cpu.hpp"

namespace kolo::test::vector_kernel_test {

TEST(VectorKernelTest, AddsUpInOrder) {
  for (const std::uint64_t blocks : {1u, 5u}) {
    VectorsOnCpu operations(blocks);
    expect_added_up_in_order(operations);
  }
}

}  // namespace kolo::test::vector_kernel_test
