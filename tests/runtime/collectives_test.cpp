// Every collective on plain memory, in every kind of world, against closed forms.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "ops/registry.hpp"
#include "runtime/runtimes.hpp"
#include "runtime/values.hpp"

namespace kolo::test {
namespace {

using namespace std::chrono_literals;

std::vector<Setting> all_settings() {
  std::vector<Setting> settings;
  for (const int size : {1, 2, 3, 4, 7}) {
    settings.push_back({.name = "Shared", .size = size});
    settings.push_back({.name = "SharedLate",
                        .size = size,
                        .network = {.longest_delay = 200us, .seed = 7, .rendezvous = true}});
    settings.push_back({.name = "SwitchedOff", .size = size});
    settings.back().config.shared_memory = false;
    settings.push_back({.name = "Nodes",
                        .size = size,
                        .network = {.nodes = std::min(size, 2),
                                    .longest_delay = 200us,
                                    .seed = 11,
                                    .rendezvous = true}});
    settings.push_back(
        {.name = "NoSharedMemory", .size = size, .network = {.has_shared_memory = false}});
    settings.back().config.tree_width = 2;
    settings.back().config.segment_bytes = 64;
    settings.push_back({.name = "SmallPieces", .size = size});
    settings.back().config.segment_bytes = 64;
    settings.back().config.staging_bytes = 4096;
    settings.back().config.fusion = false;
  }
  return settings;
}

class CollectivesTest : public testing::TestWithParam<Setting> {
 protected:
  int size() const { return GetParam().size; }
  void run(const std::function<void(Runtime&)>& body) { run_runtimes(GetParam(), body); }
};

INSTANTIATE_TEST_SUITE_P(, CollectivesTest, testing::ValuesIn(all_settings()),
                         [](const auto& setting) {
                           return setting.param.name + "Np" + std::to_string(setting.param.size);
                         });

/// For all-reduces of any type and operation; the products of seven fit an int8.
double reduce_input(DType dtype, ReduceOp op, int rank, std::size_t i) {
  const auto mixed = i + static_cast<std::size_t>(rank);
  if (dtype == DType::Bool) return mixed % 3 == 0 ? 1 : 0;
  const double sign = dtype != DType::UInt8 && mixed % 4 == 1 ? -1 : 1;
  return sign * (op == ReduceOp::Product ? 1 + static_cast<double>(mixed % 2) : input_value(rank, i));
}

double reduce_expected(DType dtype, ReduceOp op, int size, std::size_t i) {
  double result = reduce_input(dtype, op, 0, i);
  for (int rank = 1; rank < size; ++rank) {
    const double next = reduce_input(dtype, op, rank, i);
    switch (op) {
      case ReduceOp::Min: result = std::min(result, next); break;
      case ReduceOp::Max: result = std::max(result, next); break;
      case ReduceOp::Product: result *= next; break;
      case ReduceOp::Sum:
      case ReduceOp::Average: result += next; break;
    }
  }
  if (op != ReduceOp::Average) return result;
  result /= size;
  return is_floating(dtype) ? result : std::trunc(result);
}

/// Sums of small integers are exact; only the division by the size rounds.
double tolerance(DType dtype, ReduceOp op) {
  if (op != ReduceOp::Average || !is_floating(dtype)) return 0;
  return dtype == DType::BFloat16 ? 0x1p-4 : dtype == DType::Float16 ? 0x1p-7 : 1e-6;
}

TEST_P(CollectivesTest, AllReduceOfEveryTypeAndOperation) {
  run([&](Runtime& runtime) {
    for (const DType dtype : kAllDTypes) {
      for (const ReduceOp op : {ReduceOp::Average, ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max,
                                ReduceOp::Product}) {
        if (dtype == DType::Bool && op != ReduceOp::Min && op != ReduceOp::Max) continue;
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
        // Sums that cancel leave nothing to be relative to.
        const bool is_exact = tolerance(dtype, op) == 0;
        const Tensor& result = in_place ? input : output;
        if (is_exact) {
          result.expect(expected, name);
        } else {
          for (std::size_t i = 0; i < result.count(); ++i) {
            ASSERT_NEAR(result.at(i), expected(i), tolerance(dtype, op) * 11) << name << ", " << i;
          }
        }
      }
    }
  });
}

TEST_P(CollectivesTest, AllReduceScalesBeforeAndAfter) {
  run([&](Runtime& runtime) {
    Tensor tensor(100);
    tensor.fill([&](std::size_t i) { return input_value(runtime.rank(), i); });
    allreduce(tensor.view(), tensor.view(),
              {.op = ReduceOp::Sum, .prescale = 0.5, .postscale = 8.0});
    tensor.expect([&](std::size_t i) { return 4 * input_sum(size(), i); }, "scaled sum");

    // Integers: each input is truncated toward zero after its scale, the result again.
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

TEST_P(CollectivesTest, AverageOfHalvesStaysFinite) {
  run([&](Runtime& runtime) {
    Tensor tensor(33, DType::Float16);
    tensor.fill([&](std::size_t) { return 60000.0 - 32.0 * runtime.rank(); });
    allreduce(tensor.view(), tensor.view(), {.op = ReduceOp::Average});
    tensor.expect([&](std::size_t) { return 60000.0 - 16.0 * (size() - 1); }, "average", 0x1p-8);
  });
}

TEST_P(CollectivesTest, AverageOfIntegersSumsInSixtyFourBits) {
  run([&](Runtime& runtime) {
    Tensor tensor(9, DType::Int32);
    const double highest = std::numeric_limits<std::int32_t>::max();
    tensor.fill([&](std::size_t) { return highest - runtime.rank() * size(); });
    allreduce(tensor.view(), tensor.view(), {.op = ReduceOp::Average});
    tensor.expect(
        [&](std::size_t) { return highest - std::ceil(size() * (size() - 1) / 2.0); }, "average");
  });
}

TEST_P(CollectivesTest, LargeAllReduceRunsInManyPieces) {
  run([&](Runtime& runtime) {
    const std::int64_t count = GetParam().config.segment_bytes == 64 ? 20011 : 300007;
    expect_sum_works(runtime, "large", count);
    expect_sum_works(runtime, "large", count);
  });
}

TEST_P(CollectivesTest, BroadcastFromEveryRoot) {
  run([&](Runtime& runtime) {
    for (int root = 0; root < size(); ++root) {
      for (const DType dtype : {DType::Float32, DType::Int64, DType::Bool, DType::BFloat16}) {
        for (const std::int64_t rows : {0, 1, 3001}) {
          Tensor tensor(dtype, {rows, 2});
          const auto value = [&](int rank, std::size_t i) {
            const auto mixed = i * 5 + static_cast<std::size_t>(rank) * 3;
            return static_cast<double>(mixed % (dtype == DType::Bool ? 2 : 101));
          };
          tensor.fill([&](std::size_t i) { return value(runtime.rank(), i); });
          broadcast(tensor.view(), root);
          tensor.expect([&](std::size_t i) { return value(root, i); },
                        "root " + std::to_string(root) + ", rows " + std::to_string(rows));
        }
      }
    }
  });
}

/// An all-gather where rank r gives `rows_of(r)` rows of three elements.
template <class RowsOf>
void expect_gathered(const Runtime& runtime, RowsOf rows_of, DType dtype, const std::string& name) {
  const auto value = [](int rank, std::size_t i) {
    return static_cast<double>(20 * rank) + static_cast<double>(i % 19);
  };
  Tensor input(dtype, {rows_of(runtime.rank()), 3});
  input.fill([&](std::size_t i) { return value(runtime.rank(), i); });
  std::vector<std::int64_t> seen_rows;
  std::vector<std::byte> output;
  allgather(
      input.view(),
      [&](const std::vector<std::int64_t>& rows) {
        seen_rows = rows;
        std::int64_t total = 0;
        for (const std::int64_t row_count : rows) total += row_count;
        output.resize(static_cast<std::size_t>(total) * 3 * size_of(dtype) + 1);
        return output.data();
      },
      {.name = name});
  ASSERT_EQ(seen_rows.size(), static_cast<std::size_t>(runtime.size())) << name;
  std::size_t at = 0;
  for (int rank = 0; rank < runtime.size(); ++rank) {
    ASSERT_EQ(seen_rows[static_cast<std::size_t>(rank)], rows_of(rank)) << name;
    for (std::size_t i = 0; i < static_cast<std::size_t>(rows_of(rank)) * 3; ++i, ++at) {
      ASSERT_EQ(value_at(dtype, output.data(), at), value(rank, i))
          << name << ": element " << i << " of rank " << rank;
    }
  }
}

TEST_P(CollectivesTest, AllGatherOfUnevenRows) {
  run([&](Runtime& runtime) {
    const auto equal = [](int) { return std::int64_t{4}; };
    const auto uneven = [](int rank) { return std::int64_t{1 + 2 * rank} % 3 * 5; };  // 5 0 10 5 …
    const auto one_only = [&](int rank) { return std::int64_t{rank == size() - 1 ? 700 : 0}; };
    const auto none = [](int) { return std::int64_t{0}; };
    expect_gathered(runtime, equal, DType::Float32, "equal");
    expect_gathered(runtime, uneven, DType::Int16, "uneven");
    expect_gathered(runtime, one_only, DType::Float64, "one only");
    expect_gathered(runtime, none, DType::Float32, "none");
    expect_gathered(runtime, equal, DType::Float32, "uneven later");
    expect_gathered(runtime, uneven, DType::Float32, "uneven later");  // rows may change
  });
}

TEST_P(CollectivesTest, EmptyTensorsTakePart) {
  run([&](Runtime& runtime) {
    Tensor empty(DType::Float32, {3, 0, 2});
    std::vector<Handle> handles;
    handles.push_back(allreduce_async(empty.view(), empty.view(), {.name = "empty"}));
    Tensor full(6);
    full.fill([&](std::size_t i) { return input_value(runtime.rank(), i); });
    handles.push_back(
        allreduce_async(full.view(), full.view(), {.op = ReduceOp::Sum, .name = "full"}));
    TensorView nothing;
    nothing.shape = {0};
    handles.push_back(allreduce_async(nothing, nothing, {.op = ReduceOp::Sum, .name = "nothing"}));
    for (Handle& handle : handles) handle.wait();
    full.expect([&](std::size_t i) { return input_sum(size(), i); }, "full");
  });
}

TEST_P(CollectivesTest, CompressedAllReduceMovesHalfTheBytes) {
  run([&](Runtime& runtime) {
    for (const Compression compression : {Compression::fp16(), Compression::bf16()}) {
      Tensor plain(21504);  // a whole number of cache lines for every rank, compressed too
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
    Tensor integers(8, DType::Int32);  // nothing to be gained: travels as it is
    integers.fill([&](std::size_t i) { return 100000.0 + input_value(runtime.rank(), i); });
    allreduce(integers.view(), integers.view(),
              {.op = ReduceOp::Sum, .compression = Compression::fp16()});
    integers.expect([&](std::size_t i) { return 100000.0 * size() + input_sum(size(), i); },
                    "integers");
  });
}

TEST_P(CollectivesTest, ManyAtOnceInAnotherOrderOnEveryRank) {
  run([&](Runtime& runtime) {
    constexpr std::size_t kTensors = 40;
    constexpr DType kTypes[] = {DType::Float32, DType::Float32, DType::Float64, DType::Int32};
    std::vector<Tensor> tensors;
    for (std::size_t t = 0; t < kTensors; ++t) {
      tensors.emplace_back(static_cast<std::int64_t>(t * t % 50 + (t == 20 ? 3000 : 1)),
                           kTypes[t % 4]);
    }
    std::vector<std::size_t> order(kTensors);
    for (std::size_t step = 0; step < 5; ++step) {
      // 7 and 40 have no common divisor, so this is a permutation; another one on every rank.
      const auto shift = static_cast<std::size_t>(runtime.rank()) * 13 + step;
      for (std::size_t i = 0; i < kTensors; ++i) order[i] = (i * 7 + shift) % kTensors;
      std::vector<Handle> handles(kTensors);
      for (const std::size_t t : order) {
        tensors[t].fill([&](std::size_t i) { return input_value(runtime.rank(), i, t + step); });
        handles[t] = allreduce_async(tensors[t].view(), tensors[t].view(),
                                     {.op = ReduceOp::Sum, .name = "tensor " + std::to_string(t)});
      }
      std::reverse(order.begin(), order.end());
      for (const std::size_t t : order) {
        handles[t].wait();
        tensors[t].expect([&](std::size_t i) { return input_sum(size(), i, t + step); },
                          "tensor " + std::to_string(t) + " in step " + std::to_string(step));
      }
    }
  });
}

TEST_P(CollectivesTest, UnnamedOperationsAreMatchedByTheOrderOfCalls) {
  run([&](Runtime& runtime) {
    Tensor a(4);
    Tensor b(6);
    Tensor c(4);
    const auto value = [&](std::size_t salt) {
      return [&, salt](std::size_t i) { return input_value(runtime.rank(), i, salt); };
    };
    a.fill(value(1));
    b.fill(value(2));
    c.fill(value(3));
    Handle first = allreduce_async(a.view(), a.view(), {.op = ReduceOp::Sum});
    Handle second = allreduce_async(b.view(), b.view(), {.op = ReduceOp::Sum});
    Handle third = broadcast_async(c.view(), size() - 1);
    third.wait();
    second.wait();
    first.wait();
    a.expect([&](std::size_t i) { return input_sum(size(), i, 1); }, "first");
    b.expect([&](std::size_t i) { return input_sum(size(), i, 2); }, "second");
    c.expect([&](std::size_t i) { return input_value(size() - 1, i, 3); }, "third");
  });
}

TEST(CollectivesOfEveryAlgorithmTest, ThePreferredAllReduceGivesTheSameSums) {
  const ops::Registry registry;
  for (const Algorithm& algorithm : registry.algorithms()) {
    if (algorithm.collective != Collective::AllReduce) continue;
    for (const bool shared_memory : {true, false}) {
      Setting setting{.size = 3};
      setting.config.allreduce = algorithm.name;
      setting.config.shared_memory = shared_memory;
      SCOPED_TRACE(algorithm.name);
      run_runtimes(setting, [&](Runtime& runtime) {
        expect_sum_works(runtime, "short", 3);
        expect_sum_works(runtime, "long", 50001);
        Tensor average(2, DType::Int8);
        average.fill([&](std::size_t i) { return 100 + static_cast<double>(i) + runtime.rank(); });
        allreduce(average.view(), average.view(), {.op = ReduceOp::Average});
        average.expect([](std::size_t i) { return 101 + static_cast<double>(i); }, "average");
      });
    }
  }
}

TEST(CollectivesArgumentsTest, WhatCannotWorkIsRefusedAtTheCall) {
  run_runtimes(1, [](Runtime&) {
    Tensor floats(3);
    Tensor more(4);
    Tensor doubles(3, DType::Float64);
    Tensor bools(3, DType::Bool);
    Tensor scalar(DType::Float32, {});
    TensorView no_memory{nullptr, DType::Float32, {3}, {}};
    TensorView on_gpu = floats.view();
    on_gpu.device.kind = DeviceKind::Cuda;
    const auto refused = [](auto call) { return text_thrown_by<InvalidArgument>(call); };
    const auto never_called = [](const std::vector<std::int64_t>&) -> void* { return nullptr; };

    expect_contains(refused([&] { allreduce(floats.view(), more.view(), {.name = "x"}); }), "'x'");
    expect_contains(refused([&] { allreduce(floats.view(), doubles.view()); }), "dtype");
    expect_contains(refused([&] { allreduce(bools.view(), bools.view()); }), "bool");
    expect_contains(refused([&] { allreduce(no_memory, no_memory); }), "no memory");
    expect_contains(refused([&] { allreduce(on_gpu, on_gpu); }), "CUDA");
    expect_contains(refused([&] { broadcast(floats.view(), 1); }), "root rank 1");
    expect_contains(refused([&] { broadcast(floats.view(), -1); }), "root rank -1");
    expect_contains(refused([&] { allgather(scalar.view(), never_called); }), "scalar");
    expect_contains(
        refused([&] {
          allreduce(floats.view(), floats.view(), {.compression = Compression::named("zip")});
        }),
        "zip");
  });
}

}  // namespace
}  // namespace kolo::test
