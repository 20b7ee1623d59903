// Sums on GPUs by direct exchange, on the fake GPU: in rank order, they have the bits of the CPU.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "contract/reduce_case.hpp"
#include "kolo/collectives.hpp"
#include "runtime/every_world.hpp"
#include "runtime/runtimes.hpp"
#include "runtime/values.hpp"
#include "support/sanitizers.hpp"

namespace kolo::test::device_exchange_test {

constexpr DType kTypes[] = {DType::Float16, DType::BFloat16,  DType::Float32,
                            DType::Float64, DType::Complex64, DType::Complex128};
const std::vector<std::int64_t> kCounts = kIsSanitized
                                              ? std::vector<std::int64_t>{0, 5, 127}
                                              : std::vector<std::int64_t>{0, 1, 5, 127, 3001};

/// The same tensor on the CPU and on the GPU.
struct Twin {
  Twin(DType dtype, std::vector<std::int64_t> shape)
      : cpu(on_cpu(dtype, shape)), gpu(dtype, shape) {}

  template <class Formula>
  void fill(Formula formula) {
    cpu.fill(formula);
    gpu.fill(formula);
  }
  void expect_same_bits(const std::string& what) const {
    for (std::size_t i = 0; i < cpu.count(); ++i) {
      ASSERT_EQ(gpu.at(i), cpu.at(i)) << what << ", element " << i << " of " << cpu.count();
    }
  }

  Tensor cpu;
  Tensor gpu;
};

std::string text_of(DType dtype, std::int64_t count, const AllreduceOptions& options) {
  return std::string(name_of(options.op)) + " of " + std::to_string(count) + " " +
         std::string(name_of(dtype)) + ", prescale " + std::to_string(options.prescale) + ", " +
         std::string(options.compression.name());
}

std::vector<AllreduceOptions> options_of(DType dtype) {
  std::vector<AllreduceOptions> all;
  for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Average}) {
    all.push_back({.op = op});
    all.push_back({.op = op, .prescale = 1.0 / 3, .postscale = 0.7});
    if (size_of(dtype) < 4) continue;
    all.push_back({.op = op, .compression = Compression::fp16()});
    all.push_back({.op = op, .prescale = 0.3, .compression = Compression::bf16()});
  }
  return all;
}

class DeviceExchangeTest : public testing::TestWithParam<int> {
 protected:
  int size() const { return GetParam(); }

  /// Runs `body` on every rank, each with a GPU. CPUs and GPUs sum in rank order.
  void run(const std::function<void(Runtime&)>& body) {
    Setting setting{.size = size(), .network = {.gpus_per_rank = 1, .late_launches = true}};
    setting.config.algorithm = "allreduce:direct,reduce_scatter:direct";
    run_runtimes(setting, body);
  }
};
INSTANTIATE_TEST_SUITE_P(, DeviceExchangeTest, testing::Values(1, 2, 3, 7));

TEST_P(DeviceExchangeTest, SumsHaveTheBitsOfTheCpu) {
  run([&](Runtime& runtime) {
    for (const DType dtype : kTypes) {
      for (const std::int64_t count : kCounts) {
        for (AllreduceOptions options : options_of(dtype)) {
          const std::string text = text_of(dtype, count, options);
          const bool in_place = count % 2 == 0;
          Twin input(dtype, {count});
          Twin output(dtype, {count});
          input.fill(
              [&](std::size_t i) { return reduce_value({.dtype = dtype}, runtime.rank(), i); });
          Twin& result = in_place ? input : output;
          options.name = text + ", CPU";
          allreduce(input.cpu.view(), result.cpu.view(), options);
          options.name = text + ", GPU";
          allreduce(input.gpu.view(), result.gpu.view(), options);
          result.expect_same_bits(text);
        }
      }
    }
  });
}

TEST_P(DeviceExchangeTest, ScatteredSumsHaveTheBitsOfTheCpu) {
  run([&](Runtime& runtime) {
    for (const DType dtype : kTypes) {
      for (const std::int64_t rows : {0, 1, 5, 103}) {
        for (AllreduceOptions options : options_of(dtype)) {
          const std::string text = text_of(dtype, rows, options) + " scattered";
          Twin input(dtype, {rows, 3});
          Twin output(dtype, {scattered_rows(rows, size(), runtime.rank()), 3});
          input.fill(
              [&](std::size_t i) { return reduce_value({.dtype = dtype}, runtime.rank(), i); });
          options.name = text + ", CPU";
          reduce_scatter(input.cpu.view(), output.cpu.view(), options);
          options.name = text + ", GPU";
          reduce_scatter(input.gpu.view(), output.gpu.view(), options);
          output.expect_same_bits(text);
        }
      }
    }
  });
}

/// Averages tensors of several lengths, so that pieces of the whole end inside them: in one
/// operation for all on the GPU, one per tensor on the CPU.
std::vector<Twin> average_group(const Runtime& runtime, DType dtype) {
  AllreduceOptions options;
  std::vector<Twin> twins;
  std::vector<InputOutput> group;
  for (const std::int64_t count : {3, 0, 1000, 1, 57, 2002})
    twins.emplace_back(dtype, std::vector{count});
  for (std::size_t t = 0; t < twins.size(); ++t) {
    twins[t].fill(
        [&](std::size_t i) { return reduce_value({.dtype = dtype}, runtime.rank(), i + t) / 100; });
    group.push_back({twins[t].gpu.view(), twins[t].gpu.view()});
    options.name = std::to_string(t) + " of " + std::string(name_of(dtype));
    allreduce(twins[t].cpu.view(), twins[t].cpu.view(), options);
  }
  options.name = "group of " + std::string(name_of(dtype));
  grouped_allreduce(group, options);
  return twins;
}

TEST_P(DeviceExchangeTest, SumsOfGroupsHaveTheBitsOfTheCpu) {
  run([&](Runtime& runtime) {
    for (const DType dtype : kTypes) {
      for (const Twin& twin : average_group(runtime, dtype)) {
        twin.expect_same_bits(std::string(name_of(dtype)));
      }
    }
  });
}

/// As in a ring, a rank sends everything but its own piece twice, or once in a reduce-scatter.
TEST_P(DeviceExchangeTest, SendsAsMuchAsARing) {
  constexpr std::int64_t kPiece = 840;
  for (const std::string algorithm : {"ring", "direct"}) {
    SCOPED_TRACE(algorithm);
    Setting setting{.size = size(), .network = {.gpus_per_rank = 1}};
    setting.config.algorithm = "allreduce:" + algorithm + ",reduce_scatter:" + algorithm;
    run_runtimes(setting, [&](Runtime& runtime) {
      Tensor tensor(kPiece * size());
      Tensor part(kPiece);
      const auto sent = [&] { return runtime.world().metrics().bytes_sent; };
      const auto others = sizeof(float) * static_cast<std::size_t>(kPiece * (size() - 1));
      const std::uint64_t before = sent();
      allreduce(tensor.view(), tensor.view(), {.op = ReduceOp::Sum});
      EXPECT_EQ(sent() - before, 2 * others);
      reduce_scatter(tensor.view(), part.view(), {.op = ReduceOp::Sum});
      EXPECT_EQ(sent() - before, 3 * others);
      broadcast(tensor.view(), size() - 1);
      EXPECT_EQ(sent() - before, 4 * others) << "on the average over the ranks";
    });
  }
}

}  // namespace kolo::test::device_exchange_test
