#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "kolo/error.hpp"
#include "kolo/runtime.hpp"
#include "kolo/torch/tensor_collectives.hpp"
#include "runtime/runtimes.hpp"
#include "support/mpi/test_world.hpp"

namespace kolo::test {

using Shape = std::vector<std::int64_t>;

inline constexpr at::ScalarType kNumbers[] = {at::kByte,     at::kChar,  at::kShort,
                                              at::kInt,      at::kLong,  at::kHalf,
                                              at::kBFloat16, at::kFloat, at::kDouble};

/// Integers that differ between ranks and elements: 3 rank + (salt + i) mod 11. They are small
/// enough for int8, and for exact sums in bfloat16 on four ranks.
inline at::Tensor values(int rank, const Shape& shape, at::ScalarType type = at::kFloat,
                         int salt = 0) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  const at::Tensor numbers = (at::arange(count, at::kLong) + salt).remainder(11) + 3 * rank;
  return numbers.to(type).reshape(shape);
}

/// Settings from the environment, so that the same tests run on several data paths.
inline Config config_from_environment() {
  Config config = Config::from_environment();
  config.timeout = test_config().timeout;
  config.log_level = test_config().log_level;
  return config;
}

/// Each test has a Runtime in the world of the test program.
class TrainingTest : public testing::Test {
 protected:
  explicit TrainingTest(std::vector<CustomReduction> reductions = {})
      : runtime_([&] {
          InitOptions options = in_test_world(config_from_environment());
          options.reductions = std::move(reductions);
          return options;
        }()) {}

  int rank() const { return runtime_.rank(); }
  int size() const { return runtime_.size(); }
  bool is_last() const { return rank() == size() - 1; }

  at::Tensor own(const Shape& shape, at::ScalarType type = at::kFloat, int salt = 0) const {
    return values(rank(), shape, type, salt);
  }
  /// The sum of `own` over these ranks, or over all.
  at::Tensor sum_of(const std::vector<int>& ranks, const Shape& shape,
                    at::ScalarType type = at::kFloat, int salt = 0) const {
    at::Tensor sum = at::zeros(shape, at::kLong);
    for (const int rank : ranks) sum += values(rank, shape, at::kLong, salt);
    return sum.to(type);
  }
  at::Tensor sum(const Shape& shape, at::ScalarType type = at::kFloat, int salt = 0) {
    return sum_of(runtime_.world().ranks(), shape, type, salt);
  }

  /// Expects that `call` throws `Expected` with this text on all ranks, and that Kolo works
  /// afterwards.
  template <class Expected = InvalidArgument, class Call>
  void expect_refused(Call&& call, const std::string& text) {
    expect_contains(text_thrown_by<Expected>(call), text);
    EXPECT_TRUE(at::equal(allreduce(own({5}), {.op = ReduceOp::Sum}), sum({5})));
  }

  Runtime runtime_;
};

inline void expect_equal(const at::Tensor& got, const at::Tensor& expected,
                         const std::string& what = {}) {
  EXPECT_EQ(got.scalar_type(), expected.scalar_type()) << what;
  EXPECT_TRUE(got.sizes() == expected.sizes()) << what << ": " << got.sizes();
  if (got.sizes() != expected.sizes() || got.scalar_type() != expected.scalar_type()) return;
  EXPECT_TRUE(at::equal(got, expected)) << what << "\ngot\n" << got << "\nnot\n" << expected;
}

}  // namespace kolo::test
