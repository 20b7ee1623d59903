#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/process_set.hpp"
#include "kolo/torch/tensor_collectives.hpp"
#include "train/models.hpp"
#include "train/training_fixture.hpp"

/// Shared code of the SyncBatchNorm tests: batches that are the concatenation of the ranks' rows.
namespace kolo::test {

enum class Rows { Even, Uneven, NoneOnTheLast };

/// The number of rows of each of `size` ranks.
inline std::vector<std::int64_t> rows_of_ranks(Rows kind, int size) {
  std::vector<std::int64_t> rows;
  for (int rank = 0; rank < size; ++rank) {
    rows.push_back(kind == Rows::Even ? 5 : kind == Rows::Uneven ? 4 + 3 * rank : 6 + rank);
  }
  if (kind == Rows::NoneOnTheLast && size > 1) rows.back() = 0;
  return rows;
}

/// The rows of all members of a set, divided among them.
class JoinedBatch {
 public:
  JoinedBatch(const ProcessSet& set, Rows kind)
      : rows_(rows_of_ranks(kind, set.size())), rank_(static_cast<std::size_t>(set.rank())) {}

  std::int64_t count() const { return sum_until(rows_.size()); }
  at::Tensor own(const at::Tensor& all) const {
    return all.narrow(0, sum_until(rank_), rows_[rank_]);
  }

 private:
  std::int64_t sum_until(std::size_t end) const {
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < end; ++i) sum += rows_[i];
    return sum;
  }

  std::vector<std::int64_t> rows_;
  std::size_t rank_;
};

/// Random numbers, the same on all ranks. Means and standard deviations differ between rows and
/// channels.
inline at::Tensor random_batch(std::int64_t rows, const Shape& extents, int salt,
                               at::ScalarType type = at::kFloat) {
  at::Generator generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(salt));
  Shape shape{rows};
  shape.insert(shape.end(), extents.begin(), extents.end());
  Shape along_rows(shape.size(), 1);
  Shape along_channels(shape.size(), 1);
  along_rows[0] = rows;
  along_channels[1] = extents[0];
  const at::Tensor numbers = at::randn(shape, generator);
  const at::Tensor row = at::arange(rows).view(along_rows) * 0.1;
  const at::Tensor channel = at::arange(extents[0]).view(along_channels);
  return (numbers * (channel * 0.25 + 1) + row - channel * 0.5).to(type);
}

/// Equality up to `tolerance`, relative to the largest expected number if that is above 1.
inline void expect_close(const at::Tensor& got, const at::Tensor& expected, double tolerance,
                         const std::string& what) {
  EXPECT_EQ(got.defined(), expected.defined()) << what;
  if (!got.defined() || !expected.defined()) return;
  EXPECT_EQ(got.sizes(), expected.sizes()) << what;
  EXPECT_EQ(got.scalar_type(), expected.scalar_type()) << what;
  if (got.sizes() != expected.sizes() || got.numel() == 0) return;
  const at::Tensor wide = expected.detach().to(at::kDouble);
  const double scale = std::max(1.0, wide.abs().max().item<double>());
  EXPECT_LE(largest_difference(got.detach().to(at::kDouble), wide), tolerance * scale) << what;
}

}  // namespace kolo::test
