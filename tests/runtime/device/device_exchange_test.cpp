// Reductions on GPUs by direct exchange, on the fake GPU, compared with the CPU: sums in rank order
// have the same bits, Adasum the same values.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "contract/reduce_case.hpp"
#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
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
  /// `tolerance` is relative to the largest element.
  void expect_near(double tolerance, const std::string& what) const {
    double largest = 0;
    for (std::size_t i = 0; i < cpu.count(); ++i) largest = std::max(largest, std::fabs(cpu.at(i)));
    for (std::size_t i = 0; i < cpu.count(); ++i) {
      ASSERT_NEAR(gpu.at(i), cpu.at(i), tolerance * largest) << what << ", element " << i;
    }
  }

  Tensor cpu;
  Tensor gpu;
};

/// Weights are large if vectors of few elements cancel.
double tolerance_of(DType dtype, int size) {
  switch (real_type(dtype)) {
    case DType::Float16: return 4 * size * 0x1p-10;
    case DType::BFloat16: return 4 * size * 0x1p-7;
    case DType::Float32: return 4 * size * 0x1p-23;
    default: return 1e-12;
  }
}

std::string text_of(DType dtype, std::int64_t count, const AllreduceOptions& options) {
  return std::string(name_of(options.op)) + " of " + std::to_string(count) + " " +
         std::string(name_of(dtype)) + ", prescale " + std::to_string(options.prescale) + ", " +
         std::string(options.compression.name());
}

std::vector<AllreduceOptions> options_of(DType dtype, std::vector<ReduceOp> ops) {
  std::vector<AllreduceOptions> all;
  for (const ReduceOp op : ops) {
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
        for (AllreduceOptions options : options_of(dtype, {ReduceOp::Sum, ReduceOp::Average})) {
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
        for (AllreduceOptions options : options_of(dtype, {ReduceOp::Sum, ReduceOp::Average})) {
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

/// Tensors of several lengths, so that pieces of the whole end inside them: one operation for all
/// on the GPU, one per tensor on the CPU.
std::vector<Twin> reduce_group(const Runtime& runtime, DType dtype, AllreduceOptions options) {
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
      for (const Twin& twin : reduce_group(runtime, dtype, {.op = ReduceOp::Average})) {
        twin.expect_same_bits(std::string(name_of(dtype)));
      }
    }
  });
}

TEST_P(DeviceExchangeTest, AdasumIsThatOfTheCpu) {
  run([&](Runtime& runtime) {
    for (const DType dtype : kTypes) {
      for (const std::int64_t count : kCounts) {
        for (AllreduceOptions options : options_of(dtype, {ReduceOp::Adasum})) {
          const std::string text = text_of(dtype, count, options);
          Twin input(dtype, {count});
          Twin output(dtype, {count});
          input.fill([&](std::size_t i) {
            return reduce_value({.dtype = dtype}, runtime.rank(), i) / 100;
          });
          Twin& result = count % 2 == 0 ? input : output;
          options.name = text + ", CPU";
          allreduce(input.cpu.view(), result.cpu.view(), options);
          options.name = text + ", GPU";
          allreduce(input.gpu.view(), result.gpu.view(), options);
          const bool is_compressed = options.compression.name() != Compression::none().name();
          result.expect_near(tolerance_of(is_compressed ? DType::BFloat16 : dtype, size()), text);
        }
      }
    }
  });
}

TEST_P(DeviceExchangeTest, AdasumOfAGroupIsThatOfEachTensor) {
  run([&](Runtime& runtime) {
    for (const DType dtype : kTypes) {
      for (const Twin& twin : reduce_group(runtime, dtype, {.op = ReduceOp::Adasum})) {
        twin.expect_near(tolerance_of(dtype, size()), std::string(name_of(dtype)));
      }
    }
  });
}

TEST_P(DeviceExchangeTest, AdasumOfZerosAndOppositesIsThatOfTheCpu) {
  run([&](Runtime& runtime) {
    // Cycles through: all zero; the negative of the neighbour's; zero on all ranks but one.
    const auto opposite = [](int rank) { return rank % 2 == 0 ? 1.0 : -2.0; };
    const auto last_only = [&](int rank) { return rank == size() - 1 ? 1.0 : 0.0; };
    for (const auto& factor :
         {std::function<double(int)>([](int) { return 0.0; }), std::function<double(int)>(opposite),
          std::function<double(int)>(last_only)}) {
      Twin twin(DType::Float32, {77});
      twin.fill(
          [&](std::size_t i) { return factor(runtime.rank()) * (static_cast<double>(i) - 30); });
      allreduce(twin.cpu.view(), twin.cpu.view(), {.op = ReduceOp::Adasum, .name = "CPU"});
      allreduce(twin.gpu.view(), twin.gpu.view(), {.op = ReduceOp::Adasum, .name = "GPU"});
      twin.expect_near(1e-6, "Adasum");
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

TEST_P(DeviceExchangeTest, AdasumIsRefusedWhereItIsOnTheCpu) {
  run([&](Runtime& runtime) {
    const Tensor integers(8, DType::Int32);
    const Tensor floats(size());
    const Tensor one(1);
    expect_contains(text_thrown_by<InvalidArgument>([&] {
                      allreduce(integers.view(), integers.view(), {.op = ReduceOp::Adasum});
                    }),
                    "Adasum is for floating and complex types");
    expect_contains(text_thrown_by<InvalidArgument>([&] {
                      reduce_scatter(floats.view(), one.view(), {.op = ReduceOp::Adasum});
                    }),
                    "cannot be scattered");
    expect_sum_works(runtime, "afterwards");
  });
}

}  // namespace kolo::test::device_exchange_test
