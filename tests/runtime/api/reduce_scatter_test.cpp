// Reduce-scatters on plain memory, in every kind of world, against closed forms.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

#include <gtest/gtest.h>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "ops/registry.hpp"
#include "runtime/every_world.hpp"
#include "runtime/reduce_values.hpp"
#include "runtime/runtimes.hpp"
#include "runtime/values.hpp"

namespace kolo::test::reduce_scatter_test {

constexpr std::int64_t kRowElements = 3;

class ReduceScatterTest : public EveryWorldTest {};

INSTANTIATE_TEST_SUITE_P(, ReduceScatterTest, testing::ValuesIn(all_settings()), name_of_setting);

/// The rows of `rank`, computed independently of the library.
struct Share {
  std::int64_t begin = 0;
  std::int64_t count = 0;
};
Share share_of(std::int64_t rows, int size, int rank) {
  const std::int64_t base = rows / size;
  const std::int64_t extra = rows % size;
  return {rank * base + std::min<std::int64_t>(rank, extra), base + (rank < extra ? 1 : 0)};
}

/// Runs and checks a reduce-scatter of `rows` rows over `set`.
void expect_scattered(ProcessSet& set, DType dtype, ReduceOp op, std::int64_t rows, bool in_place,
                      const std::string& name) {
  const Share own = share_of(rows, set.size(), set.rank());
  ASSERT_EQ(scattered_rows(rows, set.size(), set.rank()), own.count);
  Tensor input(dtype, {rows, kRowElements});
  Tensor output(dtype, {own.count, kRowElements});
  const auto formula = [&](std::size_t i) { return reduce_input(dtype, op, set.rank(), i); };
  input.fill(formula);
  TensorView result = output.view();
  const auto begin = static_cast<std::size_t>(own.begin * kRowElements);
  if (in_place) {
    result.data = static_cast<std::byte*>(input.view().data) + begin * size_of(dtype);
  }
  reduce_scatter(input.view(), result, {.op = op, .name = name, .process_set = &set});
  const double tolerance = 11 * reduce_tolerance(dtype, op);
  for (std::size_t i = 0; i < input.count(); ++i) {
    const bool is_own = i >= begin && i < begin + result.count();
    const double expected = reduce_expected(dtype, op, set.size(), i);
    if (is_own) {
      const double value = in_place ? input.at(i) : output.at(i - begin);
      ASSERT_NEAR(value, expected, tolerance) << name << ", element " << i;
    }
    if (!is_own || !in_place) {
      ASSERT_EQ(input.at(i), formula(i)) << name << ": the input, " << i;
    }
  }
}

TEST_P(ReduceScatterTest, OfEveryTypeAndOperation) {
  run([&](Runtime& runtime) {
    int turn = 0;
    for (const DType dtype : kAllDTypes) {
      for (const ReduceOp op : kPlainOps) {
        if (!is_tested(dtype, op)) continue;
        const std::int64_t rows = 2 * size() + turn % 3;
        expect_scattered(runtime.world(), dtype, op, rows, turn++ % 2 == 0,
                         std::string(name_of(op)) + " of " + std::string(name_of(dtype)));
      }
    }
  });
}

TEST_P(ReduceScatterTest, OfAnyNumberOfRows) {
  run([&](Runtime& runtime) {
    for (const std::int64_t rows : {0, 1, size() - 1, size(), size() + 1, 3 * size() - 1, 1301}) {
      for (const bool in_place : {false, true}) {
        const std::string name = std::to_string(rows) + (in_place ? " in place" : "");
        expect_scattered(runtime.world(), DType::Float32, ReduceOp::Sum, rows, in_place, name);
        expect_scattered(runtime.world(), DType::Int16, ReduceOp::Average, rows, in_place,
                         name + " integers");
      }
    }
  });
}

TEST_P(ReduceScatterTest, RowsMayBeEmptyOrOneDimensional) {
  run([&](Runtime& runtime) {
    const std::int64_t own = share_of(5, size(), runtime.rank()).count;
    const Tensor nothing(DType::Float32, {5, 0});
    const Tensor no_result(DType::Float32, {own, 0});
    reduce_scatter(nothing.view(), no_result.view(), {.name = "no columns"});
    Tensor flat(5);
    Tensor result(own);
    flat.fill([&](std::size_t i) { return input_value(runtime.rank(), i); });
    reduce_scatter(flat.view(), result.view(), {.op = ReduceOp::Sum, .name = "flat"});
    const auto begin = static_cast<std::size_t>(share_of(5, size(), runtime.rank()).begin);
    result.expect([&](std::size_t i) { return input_sum(size(), begin + i); }, "flat");
  });
}

TEST_P(ReduceScatterTest, ScalesAndCompresses) {
  run([&](Runtime& runtime) {
    const std::int64_t rows = 4 * size() + 1;
    const Share own = share_of(rows, size(), runtime.rank());
    const auto begin = static_cast<std::size_t>(own.begin);
    for (const Compression& compression :
         {Compression::none(), Compression::fp16(), Compression::bf16()}) {
      Tensor input(rows);
      Tensor output(own.count);
      input.fill([&](std::size_t i) { return input_value(runtime.rank(), i); });
      reduce_scatter(
          input.view(), output.view(),
          {.op = ReduceOp::Sum, .prescale = 0.5, .postscale = 8, .compression = compression});
      output.expect([&](std::size_t i) { return 4 * input_sum(size(), begin + i); },
                    std::string(compression.name()));
    }
    Tensor integers(rows, DType::Int32);
    Tensor result(own.count, DType::Int32);
    integers.fill([&](std::size_t i) { return -3.0 - static_cast<double>(i) - runtime.rank(); });
    reduce_scatter(integers.view(), result.view(),
                   {.op = ReduceOp::Sum, .prescale = 0.5, .postscale = 3});
    result.expect(
        [&](std::size_t i) {
          double sum = 0;
          for (int rank = 0; rank < size(); ++rank) {
            sum += std::trunc((-3.0 - static_cast<double>(begin + i) - rank) / 2);
          }
          return 3 * sum;
        },
        "scaled integers");
  });
}

TEST(ReduceScatterArgumentsTest, WhatCannotWorkFailsOnAllRanks) {
  run_runtimes(2, [](Runtime& runtime) {
    const Tensor scalar(DType::Float32, {});
    const Tensor rows(DType::Float32, {4, 2});
    const Tensor half(DType::Float32, {2, 2});
    const Tensor bools(DType::Bool, {4});
    const Tensor half_bools(DType::Bool, {2});
    const auto refused = [](const Tensor& input, const Tensor& output, ReduceOp op) {
      return text_thrown_by<InvalidArgument>(
          [&] { reduce_scatter(input.view(), output.view(), {.op = op, .name = "x"}); });
    };
    expect_contains(refused(scalar, scalar, ReduceOp::Sum), "scalar");
    expect_contains(refused(rows, rows, ReduceOp::Sum), "shape");
    expect_contains(refused(rows, half, ReduceOp::Adasum), "Adasum");
    expect_contains(refused(bools, half_bools, ReduceOp::Sum), "bool");
    expect_sum_works(runtime, "x");
  });
}

}  // namespace kolo::test::reduce_scatter_test
