// Reductions through codecs: results, bytes on the wire, error feedback, errors.
#include "kolo/codec.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "runtime/every_world.hpp"
#include "runtime/values.hpp"
#include "support/codecs.hpp"

namespace kolo::test::codec_test {

/// Codecs send messages in every world; settings include late messages, and pieces of one block
/// each.
std::vector<Setting> settings() {
  std::vector<Setting> settings = cpu_settings();
  std::erase_if(settings, [](const Setting& setting) {
    return setting.name != "Nodes" && setting.name != "NoSharedMemory";
  });
  return settings;
}

class CodecTest : public EveryWorldTest {};
INSTANTIATE_TEST_SUITE_P(, CodecTest, testing::ValuesIn(settings()), [](const auto& tested) {
  return tested.param.name + std::to_string(tested.param.size);
});

TEST_P(CodecTest, WholeUnitsAreSummedExactly) {
  // With inputs of 0 to 10 and one 127 per block of 256, int8's unit is 1 for the inputs and `size`
  // for the sums, whose error is therefore at most half of `size`.
  run([&](Runtime& runtime) {
    for (const DType dtype : {DType::Float32, DType::Float64, DType::BFloat16}) {
      Tensor tensor(3001, dtype);
      const auto formula = [&](int rank, std::size_t i) {
        return i % 256 == 0 ? 127.0 : input_value(rank, i);
      };
      tensor.fill([&](std::size_t i) { return formula(runtime.rank(), i); });
      allreduce(tensor.view(), tensor.view(),
                {.op = ReduceOp::Sum, .compression = Compression::int8()});
      for (std::size_t i = 0; i < tensor.count(); ++i) {
        double sum = 0;
        for (int rank = 0; rank < size(); ++rank) sum += formula(rank, i);
        const double rounding = dtype == DType::BFloat16 ? sum / 256 : 0;
        ASSERT_NEAR(tensor.at(i), sum, size() == 1 ? 0 : 0.5 * size() + 0.01 + rounding);
      }
    }
  });
}

TEST_P(CodecTest, WholePayloadsChangeNothing) {
  run([&](Runtime& runtime) {
    const Compression all = Compression::top_k(1.0);
    Tensor tensor(20000, DType::Float64);
    tensor.fill([&](std::size_t i) { return input_value(runtime.rank(), i); });
    allreduce(tensor.view(), tensor.view(),
              {.prescale = 3.0, .postscale = 0.5, .compression = all});
    tensor.expect([&](std::size_t i) { return 1.5 * input_sum(size(), i) / size(); }, "average",
                  1e-6);
    Tensor rows(DType::Float32, {7, 3000});
    rows.fill([&](std::size_t i) { return input_value(runtime.rank(), i, 2); });
    const std::int64_t own = scattered_rows(7, size(), runtime.rank());
    Tensor part(DType::Float32, {own, 3000});
    std::int64_t first = 0;
    for (int rank = 0; rank < runtime.rank(); ++rank) first += scattered_rows(7, size(), rank);
    reduce_scatter(rows.view(), part.view(), {.op = ReduceOp::Sum, .compression = all});
    part.expect(
        [&](std::size_t i) {
          return input_sum(size(), i + static_cast<std::size_t>(first) * 3000, 2);
        },
        "scattered");
  });
}

TEST_P(CodecTest, ResultsHaveTheSameBitsOnAllRanks) {
  run([&](Runtime& runtime) {
    for (const Compression& compression : all_codecs()) {
      Tensor tensor(40000);
      tensor.fill([&](std::size_t i) {
        return std::sin(static_cast<double>(i) * (runtime.rank() + 1)) /
               static_cast<double>(1 + i % 7);
      });
      allreduce(tensor.view(), tensor.view(), {.compression = compression});
      Tensor root(40000);
      std::memcpy(root.view().data, tensor.view().data, tensor.view().size_bytes());
      broadcast(root.view(), 0);
      EXPECT_EQ(std::memcmp(root.view().data, tensor.view().data, tensor.view().size_bytes()), 0)
          << compression.name();
    }
  });
}

TEST_P(CodecTest, WhatIsNotFloating_TravelsAsItIs) {
  run([&](Runtime& runtime) {
    for (const DType dtype : {DType::Int64, DType::Complex64, DType::UInt8}) {
      Tensor tensor(50, dtype);
      tensor.fill([&](std::size_t i) { return input_value(runtime.rank(), i); });
      allreduce(tensor.view(), tensor.view(),
                {.op = ReduceOp::Sum, .compression = Compression::top_k(0.1)});
      tensor.expect([&](std::size_t i) { return input_sum(size(), i); },
                    std::string(name_of(dtype)));
    }
  });
}

/// The bytes that a rank sends to reduce 4 blocks of 16384 elements per rank.
TEST_P(CodecTest, BytesEqualTheFormula) {
  run([&](Runtime& runtime) {
    const auto others = static_cast<std::uint64_t>(size() - 1);
    const std::int64_t elements = 4 * 16384;
    Tensor tensor(elements * size());
    tensor.fill([&](std::size_t i) { return input_value(runtime.rank(), i); });
    Tensor part(elements);
    for (const Compression& compression : all_codecs()) {
      const std::uint64_t own = coded_bytes(compression, elements);
      const std::uint64_t sum = coded_bytes(compression, elements, size());
      const std::uint64_t before = runtime.world().metrics().bytes_sent;
      allreduce(tensor.view(), tensor.view(), {.compression = compression});
      const std::uint64_t middle = runtime.world().metrics().bytes_sent;
      EXPECT_EQ(middle - before, others * (own + sum)) << compression.name();
      reduce_scatter(tensor.view(), part.view(), {.compression = compression});
      EXPECT_EQ(runtime.world().metrics().bytes_sent - middle, others * own);
    }
  });
}

/// The results of all steps plus the residuals are the sum of all gradients.
TEST_P(CodecTest, ErrorFeedbackLosesNothing) {
  run([&](Runtime& runtime) {
    constexpr std::int64_t kCount = 20000;
    constexpr int kSteps = 3;
    for (const Compression& compression : all_codecs()) {
      for (const bool scatters : {false, true}) {
        Tensor gradient(kCount);
        Tensor result(scatters ? scattered_rows(kCount, size(), runtime.rank()) : kCount);
        std::vector<float> residual(gradient.count());
        std::vector<double> applied(result.count());
        std::vector<double> given(gradient.count());
        for (int step = 0; step < kSteps; ++step) {
          gradient.fill([&](std::size_t i) {
            return std::cos(static_cast<double>(i + 1) * (runtime.rank() + 2) + step);
          });
          for (std::size_t i = 0; i < given.size(); ++i) given[i] += gradient.at(i);
          const AllreduceOptions options{.op = ReduceOp::Sum,
                                         .compression = compression,
                                         .residual = size() > 1 ? residual.data() : nullptr};
          if (scatters) {
            reduce_scatter(gradient.view(), result.view(), options);
          } else {
            allreduce(gradient.view(), result.view(), options);
          }
          for (std::size_t i = 0; i < result.count(); ++i) applied[i] += result.at(i);
        }
        Tensor balance(kCount, DType::Float64);  // sum of inputs minus residuals
        balance.fill([&](std::size_t i) { return given[i] - residual[i]; });
        allreduce(balance.view(), balance.view(), {.op = ReduceOp::Sum});
        std::int64_t first = 0;
        for (int rank = 0; scatters && rank < runtime.rank(); ++rank) {
          first += scattered_rows(kCount, size(), rank);
        }
        for (std::size_t i = 0; i < result.count(); ++i) {
          ASSERT_NEAR(applied[i], balance.at(i + static_cast<std::size_t>(first)), 2e-4 * size())
              << compression.name() << ", element " << i;
        }
      }
    }
  });
}

TEST(CodecResidualTest, StepsThatAreNotFinite_LeaveTheResidual) {
  run_runtimes(2, [&](Runtime& runtime) {
    std::vector<float> residual(512, 0.25f);
    Tensor tensor(512);
    tensor.fill([&](std::size_t i) {
      return i == 0 || i == 300 ? std::nan("") : static_cast<double>(runtime.rank());
    });
    allreduce(tensor.view(), tensor.view(),
              {.compression = Compression::int8(), .residual = residual.data()});
    EXPECT_TRUE(std::isnan(tensor.at(0)));
    EXPECT_TRUE(std::isnan(tensor.at(300)));
    EXPECT_EQ(residual, std::vector<float>(512, 0.25f));
  });
}

TEST(CodecErrorsTest, WhatNoCodecCanDo_RaisesOnAllRanks) {
  run_runtimes(3, [&](Runtime& runtime) {
    Tensor tensor(10);
    tensor.fill([](std::size_t i) { return static_cast<double>(i); });
    const auto expect_error = [&](const AllreduceOptions& options, const std::string& part) {
      expect_contains(text_thrown_by<InvalidArgument>(
                          [&] { allreduce(tensor.view(), tensor.view(), options); }),
                      part);
    };
    expect_error({.op = ReduceOp::Max, .compression = Compression::int8()},
                 "\"int8\" is for Average and Sum, not Max");
    const Tensor integers(3, DType::Int32);
    expect_contains(text_thrown_by<InvalidArgument>([&] {
                      grouped_allreduce(
                          {{integers.view(), integers.view()}, {tensor.view(), tensor.view()}},
                          {.op = ReduceOp::Min, .compression = Compression::int8()});
                    }),
                    "\"int8\" is for Average and Sum, not Min");
    expect_error({.compression = Compression::named("top_k:2")}, "the fraction is \"2\"");
    expect_error({.compression = Compression::named("int7")}, "one_bit");
    std::vector<float> residual(10);
    if (runtime.rank() == 1) {
      expect_error({.compression = Compression::fp16(), .residual = residual.data()},
                   "a residual is for one floating tensor");
    } else {
      expect_error({.compression = Compression::fp16()}, "a residual is for one floating tensor");
    }
    const Compression own =
        runtime.rank() == 2 ? Compression::top_k(0.5) : Compression::top_k(0.25);
    const std::string text = text_thrown_by<MismatchError>(
        [&] { allreduce(tensor.view(), tensor.view(), {.compression = own}); });
    expect_contains(text, "top_k:0.5");
    expect_contains(text, "top_k:0.25");
    expect_sum_works(runtime, "afterwards");
  });
}

/// A codec defined by the program: sends each element as a whole number of bytes.
class WholeCodec final : public Codec {
 public:
  std::string_view name() const override { return "whole"; }
  std::size_t block() const override { return 10; }
  double error_bound() const override { return 0.5; }
  std::size_t payload_bytes(std::size_t count, int) const override { return count; }
  void encode(std::span<const float> values, int, std::byte* payload) const override {
    for (std::size_t i = 0; i < values.size(); ++i) payload[i] = static_cast<std::byte>(values[i]);
  }
  void add_decoded(const std::byte* payload, int, std::span<float> values) const override {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] += static_cast<float>(payload[i]);
  }
};

TEST(OwnCodecTest, ProgramsAddTheirOwn) {
  static const WholeCodec codec;
  run_ranks(3, [&](FakeWorld& world) {
    InitOptions options = options_in(world, test_config());
    options.codecs = {&codec};
    Runtime runtime(std::move(options));
    Runtime::set_thread_current(&runtime);
    Tensor tensor(25);
    tensor.fill([&](std::size_t i) { return input_value(runtime.rank(), i); });
    allreduce(tensor.view(), tensor.view(),
              {.op = ReduceOp::Sum, .compression = Compression::named("whole")});
    tensor.expect([&](std::size_t i) { return input_sum(3, i); }, "whole");
  });
}

TEST(OwnCodecTest, RanksThatHaveOthers_DoNotStart) {
  static const WholeCodec codec;
  run_ranks(2, [&](FakeWorld& world) {
    InitOptions options = options_in(world, test_config());
    if (world.topology().rank == 1) options.codecs = {&codec};
    const std::string text =
        text_thrown_by<InvalidArgument>([&] { Runtime runtime(std::move(options)); });
    expect_contains(text, "rank 1 has codecs whole");
  });
}

}  // namespace kolo::test::codec_test
