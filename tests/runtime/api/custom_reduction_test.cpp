// Custom reductions.
#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "ops/registry.hpp"
#include "runtime/every_world.hpp"
#include "runtime/runtimes.hpp"
#include "runtime/values.hpp"

namespace kolo::test::custom_reduction_test {

/// Keeps the highest rank's nonzero element: associative, but not commutative.
void combine_last(DType dtype, const void* next, void* accumulator, std::size_t count) {
  const auto* from = static_cast<const std::byte*>(next);
  auto* to = static_cast<std::byte*>(accumulator);
  for (std::size_t i = 0; i < count; ++i) {
    if (value_at(dtype, from, i) != 0) set_value(dtype, to, i, value_at(dtype, from, i));
  }
}
void fill_zero(DType dtype, void* values, std::size_t count) {
  std::fill_n(static_cast<std::byte*>(values), count * size_of(dtype), std::byte{0});
}

/// Exclusive or, on the bits of the elements.
void combine_xor(DType dtype, const void* next, void* accumulator, std::size_t count) {
  const auto* from = static_cast<const std::byte*>(next);
  auto* to = static_cast<std::byte*>(accumulator);
  for (std::size_t i = 0; i < count * size_of(dtype); ++i) to[i] ^= from[i];
}

const std::vector<CustomReduction> kReductions{{"last", combine_last, fill_zero},
                                               {"xor", combine_xor, fill_zero}};

class CustomReductionTest : public testing::TestWithParam<Setting> {};

INSTANTIATE_TEST_SUITE_P(, CustomReductionTest, testing::ValuesIn(cpu_settings()), name_of_setting);

double bits_of(int rank, std::size_t i) {
  return static_cast<double>((i * 37 + static_cast<std::size_t>(rank) * 11) % 256);
}
double xor_of(int size, std::size_t i) {
  unsigned bits = 0;
  for (int rank = 0; rank < size; ++rank) bits ^= static_cast<unsigned>(bits_of(rank, i));
  return bits;
}

TEST_P(CustomReductionTest, IsAppliedInTheOrderOfRanks) {
  run_with_reductions(GetParam(), kReductions, [&](Runtime& runtime) {
    Tensor tensor(1500);
    // Element i is nonzero only on ranks up to i % size.
    tensor.fill([&](std::size_t i) {
      const bool has_some = runtime.rank() <= static_cast<int>(i % 5);
      return has_some ? 10.0 * (runtime.rank() + 1) : 0.0;
    });
    allreduce(tensor.view(), tensor.view(), {.op = ReduceOp::Custom, .custom = "last"});
    tensor.expect(
        [&](std::size_t i) {
          return 10.0 * std::min(GetParam().size, static_cast<int>(i % 5) + 1);
        },
        "last");
  });
}

TEST(CustomReductionAlgorithmsTest, EveryAlgorithmRunsIt) {
  const ops::Registry registry;
  for (const Algorithm& algorithm : registry.algorithms()) {
    if (algorithm.collective != Collective::AllReduce) continue;
    SCOPED_TRACE(algorithm.name);
    Setting setting{.size = 3};
    setting.config.algorithm = "allreduce:" + std::string(algorithm.name);
    run_with_reductions(setting, kReductions, [&](Runtime& runtime) {
      Tensor tensor(501, DType::UInt8);
      tensor.fill([&](std::size_t i) { return bits_of(runtime.rank(), i); });
      allreduce(tensor.view(), tensor.view(), {.op = ReduceOp::Custom, .custom = "xor"});
      tensor.expect([&](std::size_t i) { return xor_of(3, i); }, "xor");
    });
  }
}

TEST(CustomReductionArgumentsTest, MistakesOfOneRankFailOnAll) {
  run_with_reductions({.size = 2}, kReductions, [](Runtime& runtime) {
    Tensor tensor(4);
    const auto refused = [&](AllreduceOptions odd) {
      AllreduceOptions options{.op = ReduceOp::Custom, .custom = "xor"};
      if (runtime.rank() == 1) options = odd;
      options.name = "x";
      const std::string text = text_thrown_by<InvalidArgument>(
          [&] { allreduce(tensor.view(), tensor.view(), options); });
      expect_contains(text, "rank 1: ");
      return text;
    };
    const std::string unknown = refused({.op = ReduceOp::Custom, .custom = "and"});
    expect_contains(unknown, "\"and\"");
    expect_contains(unknown, "last, xor");
    expect_contains(refused({.op = ReduceOp::Custom, .prescale = 2, .custom = "xor"}), "scales");
    expect_contains(refused({.op = ReduceOp::Custom}), "custom reduction \"\"");
    expect_sum_works(runtime, "x");
  });
}

TEST(CustomReductionArgumentsTest, TheListMustBeTheSameOnAllRanks) {
  run_ranks(2, [](FakeWorld& world) {
    InitOptions options = options_in(world, test_config());
    if (world.topology().rank == 0) options.reductions = kReductions;
    const std::string text =
        text_thrown_by<InvalidArgument>([&] { Runtime runtime(std::move(options)); });
    expect_contains(text, "rank 0 has reductions last xor, rank 1 has reductions");
  });
}

}  // namespace kolo::test::custom_reduction_test
