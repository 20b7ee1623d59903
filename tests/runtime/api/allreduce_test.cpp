// All-reduces on plain memory, in every kind of world, against closed forms.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "kolo/collectives.hpp"
#include "ops/registry.hpp"
#include "runtime/every_world.hpp"
#include "runtime/reduce_values.hpp"
#include "runtime/runtimes.hpp"
#include "runtime/values.hpp"
#include "support/sanitizers.hpp"

namespace kolo::test::allreduce_test {

class AllReduceTest : public EveryWorldTest {};

INSTANTIATE_TEST_SUITE_P(, AllReduceTest, testing::ValuesIn(all_settings()), name_of_setting);

TEST_P(AllReduceTest, OfEveryTypeAndOperation) {
  run([&](Runtime& runtime) {
    for (const DType dtype : kAllDTypes) {
      for (const ReduceOp op : kPlainOps) {
        if (!is_tested(dtype, op)) continue;
        const std::string name = std::string(name_of(op)) + " of " + std::string(name_of(dtype));
        const bool in_place = (static_cast<int>(dtype) + static_cast<int>(op)) % 2 == 0;
        Tensor input(dtype, {5, 7});
        Tensor output(dtype, {5, 7});
        const auto formula = [&](std::size_t i) {
          return reduce_input(dtype, op, runtime.rank(), i);
        };
        const auto expected = [&](std::size_t i) { return reduce_expected(dtype, op, size(), i); };
        input.fill(formula);
        allreduce(input.view(), in_place ? input.view() : output.view(), {.op = op, .name = name});
        if (!in_place) input.expect(formula, name + ": the input");
        expect_reduced(in_place ? input : output, op, expected, name);
      }
    }
  });
}

TEST_P(AllReduceTest, ScalesBeforeAndAfter) {
  run([&](Runtime& runtime) {
    Tensor tensor(100);
    tensor.fill([&](std::size_t i) { return input_value(runtime.rank(), i); });
    allreduce(tensor.view(), tensor.view(),
              {.op = ReduceOp::Sum, .prescale = 0.5, .postscale = 8.0});
    tensor.expect([&](std::size_t i) { return 4 * input_sum(size(), i); }, "scaled sum");

    // Integers: each input is truncated toward zero after scaling, and so is the result.
    Tensor integers(20, DType::Int32);
    integers.fill([&](std::size_t i) { return -3.0 - static_cast<double>(i) - runtime.rank(); });
    allreduce(integers.view(), integers.view(),
              {.op = ReduceOp::Sum, .prescale = 0.5, .postscale = 3.0});
    integers.expect(
        [&](std::size_t i) {
          double sum = 0;
          for (int rank = 0; rank < size(); ++rank) {
            sum += std::trunc((-3.0 - static_cast<double>(i) - rank) / 2);
          }
          return 3 * sum;
        },
        "scaled sum of integers");
  });
}

TEST_P(AllReduceTest, AverageOfHalvesStaysFinite) {
  run([&](Runtime& runtime) {
    Tensor tensor(33, DType::Float16);
    tensor.fill([&](std::size_t) { return 60000.0 - 32.0 * runtime.rank(); });
    allreduce(tensor.view(), tensor.view(), {.op = ReduceOp::Average});
    tensor.expect([&](std::size_t) { return 60000.0 - 16.0 * (size() - 1); }, "average", 0x1p-8);
  });
}

TEST_P(AllReduceTest, AverageOfIntegersSumsInSixtyFourBits) {
  run([&](Runtime& runtime) {
    Tensor tensor(9, DType::Int32);
    const double highest = std::numeric_limits<std::int32_t>::max();
    tensor.fill([&](std::size_t) { return highest - runtime.rank() * size(); });
    allreduce(tensor.view(), tensor.view(), {.op = ReduceOp::Average});
    tensor.expect([&](std::size_t) { return highest - std::ceil(size() * (size() - 1) / 2.0); },
                  "average");
  });
}

TEST_P(AllReduceTest, LargeOnesRunInManyPieces) {
  run([&](Runtime& runtime) {
    const std::int64_t count = GetParam().config.tuning.segment_bytes == 64 ? 20011 : 300007;
    expect_sum_works(runtime, "large", count);
    expect_sum_works(runtime, "large", count);
  });
}

TEST_P(AllReduceTest, CompressedMovesHalfTheBytes) {
  run([&](Runtime& runtime) {
    for (const Compression& compression : {Compression::fp16(), Compression::bf16()}) {
      Tensor plain(21504);  // a whole number of cache lines per rank, even when compressed
      Tensor packed(21504);
      const auto formula = [&](std::size_t i) { return input_value(runtime.rank(), i); };
      const auto expected = [&](std::size_t i) { return input_sum(size(), i); };
      plain.fill(formula);
      packed.fill(formula);
      const std::uint64_t start = runtime.world().metrics().bytes_sent;
      allreduce(plain.view(), plain.view(), {.op = ReduceOp::Sum});
      const std::uint64_t middle = runtime.world().metrics().bytes_sent;
      allreduce(packed.view(), packed.view(), {.op = ReduceOp::Sum, .compression = compression});
      const std::uint64_t end = runtime.world().metrics().bytes_sent;
      plain.expect(expected, "plain");
      packed.expect(expected, std::string(compression.name()));
      EXPECT_EQ(middle - start, 2 * (end - middle)) << compression.name();
      EXPECT_EQ(end > middle, size() > 1);
    }
    Tensor integers(8, DType::Int32);  // no gain from compression: sent uncompressed
    integers.fill([&](std::size_t i) { return 100000.0 + input_value(runtime.rank(), i); });
    allreduce(integers.view(), integers.view(),
              {.op = ReduceOp::Sum, .compression = Compression::fp16()});
    integers.expect([&](std::size_t i) { return 100000.0 * size() + input_sum(size(), i); },
                    "integers");
  });
}

}  // namespace kolo::test::allreduce_test
