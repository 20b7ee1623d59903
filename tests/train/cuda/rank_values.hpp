// Tensors of ranks on CUDA devices, and their sums, for tests of collectives.
#pragma once

#include <cstdint>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "train/cuda/fake_cuda_fixture.hpp"

namespace kolo::test {

/// The input of rank `of_rank`: [rows, 3], all elements different.
inline at::Tensor values(const CudaRank& rank, std::int64_t rows, int of_rank) {
  return at::arange(rows * 3, rank.options()).view({rows, 3}).add(100.0 * of_rank);
}

/// The sum of `values` over all ranks.
inline at::Tensor sum_of_values(const CudaRank& rank, std::int64_t rows) {
  at::Tensor sum = at::zeros({rows, 3}, rank.options());
  for (int other = 0; other < rank.size(); ++other) sum += values(rank, rows, other);
  return sum;
}

inline void expect_same(const at::Tensor& got, const at::Tensor& expected) {
  EXPECT_EQ(got.device(), expected.device());
  EXPECT_TRUE(at::equal(got.cpu(), expected.cpu())) << got.cpu() << expected.cpu();
}

}  // namespace kolo::test
