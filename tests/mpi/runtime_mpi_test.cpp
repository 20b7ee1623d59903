// The Runtime on ranks that are processes, over the MPI that the test program started. If linked
// with gpu/tensors_on_gpu.cpp, tensors are on GPUs.
#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/collectives.hpp"
#include "kolo/shared_buffer.hpp"
#include "mpi/runtime_mpi_fixture.hpp"
#include "runtime/runtimes.hpp"
#include "runtime/values.hpp"
#include "support/mpi/agree.hpp"
#include "support/mpi/variants.hpp"

namespace kolo::test::runtime_mpi_test {

const AlsoIn also_in({"no_single_copy"});

INSTANTIATE_TEST_SUITE_P(, RuntimeMpiTest, testing::ValuesIn(all_worlds()),
                         [](const auto& item) { return item.param.name; });

TEST_P(RuntimeMpiTest, RunsInTheWorldOfTheProgramAndMayBeMadeAgain) {
  for (int round = 0; round < 3; ++round) {
    EXPECT_FALSE(is_initialized());
    Runtime runtime(options());
    EXPECT_TRUE(is_initialized());
    EXPECT_EQ(runtime.rank(), expected_rank());
    EXPECT_EQ(runtime.size(), expected_size());
    expect_sum_works(runtime, "x");
    expect_sum_works(runtime, "large", 200003);
  }
  // MPI keeps working after Kolo has shut down.
  EXPECT_ON_ALL_RANKS(!is_initialized());
}

/// Messages beyond MPI's eager limit. If MPI cannot read other processes' memory, they arrive only
/// while their sender calls MPI.
TEST_P(RuntimeMpiTest, LongNegotiations_ReachAllRanks) {
  Runtime runtime(options());
  const std::string stem(200, 'n');
  std::vector<std::vector<float>> values(80, std::vector<float>(3, 1.0F));
  for (int round = 0; round < 2; ++round) {
    std::vector<Handle> handles;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const TensorView view{values[i].data(), DType::Float32, {3}};
      handles.push_back(allreduce_async(
          view, view, {.name = stem + std::to_string(i), .process_set = &runtime.world()}));
    }
    for (Handle& handle : handles) handle.wait();
  }
  for (const auto& each : values) EXPECT_EQ(each, std::vector<float>(3, 1.0F));
}

TEST_P(RuntimeMpiTest, KnowsWhoSharesItsNode) {
  const Runtime runtime(options());
  const int size = runtime.size();
  const bool has_fake_nodes = GetParam().config.fake_nodes == 2 && size > 1;
  const int first_node = size - size / 2;  // nodes are blocks of ranks
  const bool on_first = !has_fake_nodes || runtime.rank() < first_node;
  EXPECT_EQ(runtime.local_size(), !has_fake_nodes ? size : on_first ? first_node : size / 2);
  EXPECT_EQ(runtime.local_rank(), on_first ? runtime.rank() : runtime.rank() - first_node);
  EXPECT_EQ(runtime.is_homogeneous(), !has_fake_nodes || size % 2 == 0);
}

TEST_P(RuntimeMpiTest, AllReduceOfEveryType) {
  Runtime runtime(options());
  for (const DType dtype : kAllDTypes) {
    for (const std::int64_t count : {0, 1, 13, 5003}) {
      Tensor tensor(count, dtype);
      const auto value = [&](int rank, std::size_t i) {
        return dtype == DType::Bool ? static_cast<double>((i + static_cast<std::size_t>(rank)) % 2)
                                    : input_value(rank, i);
      };
      tensor.fill([&](std::size_t i) { return value(runtime.rank(), i); });
      const ReduceOp op = dtype == DType::Bool ? ReduceOp::Max : ReduceOp::Sum;
      allreduce(tensor.view(), tensor.view(), {.op = op});
      tensor.expect(
          [&](std::size_t i) {
            double expected = 0;
            for (int rank = 0; rank < runtime.size(); ++rank) {
              expected = op == ReduceOp::Max ? std::max(expected, value(rank, i))
                                             : expected + value(rank, i);
            }
            return expected;
          },
          std::string(name_of(dtype)));
    }
  }
}

TEST_P(RuntimeMpiTest, FactorsScaleEveryElementOfALargeTensor) {
  Runtime runtime(options());
  Tensor tensor(100'003);
  tensor.fill([&](std::size_t i) { return input_value(runtime.rank(), i); });
  allreduce(tensor.view(), tensor.view(), {.op = ReduceOp::Sum, .prescale = 0.5, .postscale = 4.0});
  tensor.expect([&](std::size_t i) { return 2 * input_sum(runtime.size(), i); }, "scaled");
}

TEST_P(RuntimeMpiTest, BroadcastFromEveryRoot) {
  Runtime runtime(options());
  for (int root = 0; root < runtime.size(); ++root) {
    Tensor tensor(30011, DType::Int64);
    const auto value = [](int rank, std::size_t i) {
      return static_cast<double>(i) * 7 + 1000000.0 * rank;
    };
    tensor.fill([&](std::size_t i) { return value(runtime.rank(), i); });
    broadcast(tensor.view(), root);
    tensor.expect([&](std::size_t i) { return value(root, i); }, "root " + std::to_string(root));
  }
}

TEST_P(RuntimeMpiTest, AllGatherOfUnevenRows) {
  Runtime runtime(options());
  const auto rows_of = [](int rank) { return std::int64_t{1 + 2 * rank} % 3 * 700; };
  Tensor input(DType::Float32, {rows_of(runtime.rank()), 3});
  input.fill([&](std::size_t i) { return 10000.0 * runtime.rank() + static_cast<double>(i); });
  Rows output{DType::Float32, 3};
  allgather(input.view(), output.allocator());
  const std::byte* const values = output.memory.look();
  std::size_t at = 0;
  for (int rank = 0; rank < runtime.size(); ++rank) {
    ASSERT_EQ(output.counts[static_cast<std::size_t>(rank)], rows_of(rank));
    for (std::size_t i = 0; i < static_cast<std::size_t>(rows_of(rank)) * 3; ++i, ++at) {
      ASSERT_EQ(value_at(output.dtype, values, at), 10000.0 * rank + static_cast<double>(i));
    }
  }
}

TEST_P(RuntimeMpiTest, ManyAtOnceInAnotherOrderOnEveryRank) {
  Runtime runtime(options());
  constexpr std::size_t kTensors = 30;
  std::vector<Tensor> tensors;
  for (std::size_t t = 0; t < kTensors; ++t) {
    tensors.emplace_back(static_cast<std::int64_t>(t * t + (t == 9 ? 100000 : 1)));
  }
  for (std::size_t step = 0; step < 10; ++step) {
    std::vector<Handle> handles(kTensors);
    for (std::size_t i = 0; i < kTensors; ++i) {
      const std::size_t t = (i * 7 + static_cast<std::size_t>(runtime.rank()) * 11) % kTensors;
      tensors[t].fill([&](std::size_t k) { return input_value(runtime.rank(), k, t + step); });
      handles[t] = allreduce_async(tensors[t].view(), tensors[t].view(),
                                   {.op = ReduceOp::Sum, .name = std::to_string(t)});
    }
    for (std::size_t t = 0; t < kTensors; ++t) {
      handles[t].wait();
      tensors[t].expect([&](std::size_t i) { return input_sum(runtime.size(), i, t + step); },
                        "tensor " + std::to_string(t));
    }
  }
}

TEST_P(RuntimeMpiTest, SharedBuffersAreReducedInPlace) {
  Runtime runtime(options());
  constexpr std::size_t kCount = 100003;
  const SharedBuffer buffer(kCount * sizeof(float));
  const bool can_share = runtime.size() > 1 && runtime.local_size() == runtime.size() &&
                         GetParam().config.shared_memory;
  EXPECT_EQ(buffer.is_shared(), can_share);
  auto* const values = reinterpret_cast<float*>(buffer.data());
  for (std::size_t step = 0; step < 3; ++step) {
    for (std::size_t i = 0; i < kCount; ++i) {
      values[i] = static_cast<float>(input_value(runtime.rank(), i, step));
    }
    allreduce_async(buffer, 0, kCount, DType::Float32, {.op = ReduceOp::Sum, .name = "x"}).wait();
    for (std::size_t i = 0; i < kCount; ++i) {
      ASSERT_EQ(values[i], input_sum(runtime.size(), i, step)) << "element " << i;
    }
  }
}

TEST_P(RuntimeMpiTest, ReduceScatterOfUnevenRows) {
  Runtime runtime(options());
  for (const std::int64_t rows : {0, 1, runtime.size() + 1, 10007}) {
    const std::int64_t own = scattered_rows(rows, runtime.size(), runtime.rank());
    std::int64_t begin = 0;
    for (int rank = 0; rank < runtime.rank(); ++rank) {
      begin += scattered_rows(rows, runtime.size(), rank);
    }
    const Tensor input = [&] {
      Tensor filled(DType::Float32, {rows, 3});
      filled.fill([&](std::size_t i) { return input_value(runtime.rank(), i); });
      return filled;
    }();
    Tensor output(DType::Float32, {own, 3});
    reduce_scatter(input.view(), output.view(), {.op = ReduceOp::Sum});
    const auto skipped = static_cast<std::size_t>(3 * begin);
    output.expect([&](std::size_t i) { return input_sum(runtime.size(), skipped + i); },
                  std::to_string(rows) + " rows");
  }
}

TEST_P(RuntimeMpiTest, AllToAllOfUnevenSplits) {
  Runtime runtime(options());
  const auto split = [](int from, int to) { return std::int64_t{from * 2 + to * 3} % 5 * 300; };
  std::vector<std::int64_t> splits;
  std::int64_t rows = 0;
  for (int to = 0; to < runtime.size(); ++to)
    rows += splits.emplace_back(split(runtime.rank(), to));
  Tensor input(rows);
  input.fill([&](std::size_t i) { return 10000.0 * runtime.rank() + static_cast<double>(i); });
  Rows output{DType::Float32, 1};
  alltoall(input.view(), splits, output.allocator());
  const std::byte* const values = output.memory.look();
  std::size_t at = 0;
  for (int from = 0; from < runtime.size(); ++from) {
    std::int64_t offset = 0;
    for (int to = 0; to < runtime.rank(); ++to) offset += split(from, to);
    ASSERT_EQ(output.counts[static_cast<std::size_t>(from)], split(from, runtime.rank()));
    for (std::int64_t i = 0; i < split(from, runtime.rank()); ++i) {
      ASSERT_EQ(value_at(output.dtype, values, at++),
                10000.0 * from + static_cast<double>(offset + i));
    }
  }
}

TEST_P(RuntimeMpiTest, GroupsOfMixedTypes) {
  Runtime runtime(options());
  for (int step = 0; step < 3; ++step) {
    std::vector<Tensor> members;
    members.emplace_back(1001);
    members.emplace_back(0);
    members.emplace_back(50021, DType::Float64);
    members.emplace_back(3, DType::Int32);
    std::vector<InputOutput> tensors;
    for (Tensor& member : members) {
      member.fill([&](std::size_t i) { return input_value(runtime.rank(), i); });
      tensors.push_back({member.view(), member.view()});
    }
    grouped_allreduce(tensors, {.op = ReduceOp::Sum, .name = "x"});
    for (const Tensor& member : members) {
      member.expect([&](std::size_t i) { return input_sum(runtime.size(), i); }, "member");
    }
  }
}

TEST_P(RuntimeMpiTest, RanksJoinAfterUnevenSteps) {
  Runtime runtime(options());
  for (int round = 0; round < 4; ++round) {
    const bool is_rising = round % 2 == 0;
    const auto steps = [&](int rank) { return is_rising ? rank + 1 : 2 * (runtime.size() - rank); };
    for (int step = 0; step < steps(runtime.rank()); ++step) {
      int active = 0;
      for (int rank = 0; rank < runtime.size(); ++rank) active += step < steps(rank) ? 1 : 0;
      Tensor tensor(20011);
      tensor.fill([](std::size_t i) { return static_cast<double>(i % 100); });
      allreduce(tensor.view(), tensor.view(),
                {.join_divisor = JoinDivisor::Active, .name = "mean of active"});
      tensor.expect([](std::size_t i) { return static_cast<double>(i % 100); }, "mean", 1e-6);
      tensor.fill([](std::size_t) { return 1; });
      allreduce(tensor.view(), tensor.view(), {.op = ReduceOp::Sum, .name = "sum"});
      tensor.expect([&](std::size_t) { return active; }, "sum");
    }
    EXPECT_EQ(join(), is_rising ? runtime.size() - 1 : 0);
  }
  expect_sum_works(runtime, "x");
}

}  // namespace kolo::test::runtime_mpi_test
