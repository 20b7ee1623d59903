#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "comm/gpu_ranks.hpp"
#include "kolo/error.hpp"

namespace kolo::test::fake_collectives_test {

std::int32_t value_at(int rank, std::size_t i) {
  return 100 * rank + static_cast<std::int32_t>(i) + 1;
}

std::vector<std::int32_t> values_of(int rank, std::size_t count) {
  std::vector<std::int32_t> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = value_at(rank, i);
  return values;
}

/// 2, 0, 4, 0 … elements per rank, or 3 on each.
std::vector<std::size_t> counts_of(int size, bool are_even) {
  std::vector<std::size_t> counts;
  for (int rank = 0; rank < size; ++rank) {
    counts.push_back(are_even ? 3 : static_cast<std::size_t>(rank % 2 == 0 ? rank + 2 : 0));
  }
  return counts;
}

std::size_t sum_of_first(const std::vector<std::size_t>& counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, std::size_t{0});
}

TEST(FakeGpuCollectivesTest, AllReduceKnowsEveryTypeAndOperation) {
  expect_no_hazards([](const GpuRank& self) {
    const auto stream = self.gpu.make_stream();
    for (int index = 0; index < kDTypeCount; ++index) {
      const auto dtype = static_cast<DType>(index);
      if (dtype == DType::Int16 || dtype == DType::Bool || is_complex(dtype)) continue;
      const double n = self.size;
      const std::array<std::pair<ReduceOp, double>, 4> expected{{{ReduceOp::Sum, n * (n + 1) / 2},
                                                                 {ReduceOp::Product, n == 2   ? 2
                                                                                     : n == 3 ? 6
                                                                                              : 24},
                                                                 {ReduceOp::Min, 1},
                                                                 {ReduceOp::Max, n}}};
      for (const auto& [op, value] : expected) {
        SCOPED_TRACE(std::string(name_of(dtype)) + " by " + std::string(name_of(op)));
        const std::size_t bytes = 5 * size_of(dtype);
        DeviceArray<std::uint8_t> input(self, bytes);
        DeviceArray<std::uint8_t> right(self, bytes);
        DeviceArray<std::uint8_t> output(self, bytes);
        self.gpu.fill(input.data(), 5, dtype, comm::scalar_of(dtype, self.rank + 1), stream.get());
        self.gpu.fill(right.data(), 5, dtype, comm::scalar_of(dtype, value), stream.get());
        self.communicator.all_reduce(input.data(), output.data(), 5, dtype, {.op = op},
                                     stream.get());
        self.communicator.all_reduce(input.data(), input.data(), 5, dtype, {.op = op},
                                     stream.get());
        self.hub.synchronize(self.rank, stream.get());
        EXPECT_EQ(output.get(), right.get());
        EXPECT_EQ(input.get(), right.get());
      }
    }
  });
}

TEST(FakeGpuCollectivesTest, AFactorComesBeforeTheSum) {
  expect_no_hazards([](const GpuRank& self) {
    DeviceArray<float> array(self, {static_cast<float>(self.rank + 1), 8});
    self.communicator.all_reduce(array.data(), array.data(), 2, DType::Float32, {.factor = 0.25},
                                 nullptr);
    self.hub.synchronize(self.rank, nullptr);
    const auto n = static_cast<float>(self.size);
    EXPECT_EQ(array.get(), (std::vector<float>{n * (n + 1) / 8, 2 * n}));
  });
}

TEST(FakeGpuCollectivesTest, BoolsHaveMinAndMax) {
  expect_no_hazards([](const GpuRank& self) {
    DeviceArray<std::uint8_t> bools(self, {1, self.rank == 0 ? std::uint8_t{1} : std::uint8_t{0}});
    DeviceArray<std::uint8_t> any(self, 2);
    self.communicator.all_reduce(bools.data(), any.data(), 2, DType::Bool, {.op = ReduceOp::Max},
                                 nullptr);
    self.communicator.all_reduce(bools.data(), bools.data(), 2, DType::Bool, {.op = ReduceOp::Min},
                                 nullptr);
    self.hub.synchronize(self.rank, nullptr);
    EXPECT_EQ(any.get(), (std::vector<std::uint8_t>{1, 1}));
    EXPECT_EQ(bools.get(), (std::vector<std::uint8_t>{1, 0}));
  });
}

TEST(FakeGpuCollectivesTest, ReduceScatter) {
  expect_no_hazards([](const GpuRank& self) {
    for (const bool is_even : {true, false}) {
      for (const bool is_in_place : {true, false}) {
        const auto counts = counts_of(self.size, is_even);
        const std::size_t before = sum_of_first(counts, self.rank);
        const std::size_t own = counts[static_cast<std::size_t>(self.rank)];
        DeviceArray<std::int32_t> input(self,
                                        values_of(self.rank, sum_of_first(counts, self.size)));
        DeviceArray<std::int32_t> output(self, own);
        std::byte* const place = is_in_place ? input.data() + before * 4 : output.data();
        self.communicator.reduce_scatter(input.data(), place, counts, DType::Int32, {}, nullptr);
        self.hub.synchronize(self.rank, nullptr);
        const auto all = input.get();
        const auto scattered = output.get();
        for (std::size_t i = 0; i < own; ++i) {
          std::int32_t sum = 0;
          for (int rank = 0; rank < self.size; ++rank) sum += value_at(rank, before + i);
          EXPECT_EQ(is_in_place ? all[before + i] : scattered[i], sum);
        }
      }
    }
  });
}

TEST(FakeGpuCollectivesTest, AllGather) {
  expect_no_hazards([](const GpuRank& self) {
    for (const bool is_even : {true, false}) {
      for (const bool is_in_place : {true, false}) {
        const auto counts = counts_of(self.size, is_even);
        const auto own = values_of(self.rank, counts[static_cast<std::size_t>(self.rank)]);
        std::vector<std::int32_t> expected;
        for (int rank = 0; rank < self.size; ++rank) {
          const auto values = values_of(rank, counts[static_cast<std::size_t>(rank)]);
          expected.insert(expected.end(), values.begin(), values.end());
        }
        DeviceArray<std::int32_t> input(self, own);
        DeviceArray<std::int32_t> output(self, expected.size());
        std::byte* const place = output.data() + sum_of_first(counts, self.rank) * 4;
        self.hub.copy_to_device(self.rank, std::as_bytes(std::span(own)), place);
        self.communicator.all_gather(is_in_place ? place : input.data(), output.data(), counts,
                                     DType::Int32, nullptr);
        self.hub.synchronize(self.rank, nullptr);
        EXPECT_EQ(output.get(), expected);
      }
    }
  });
}

TEST(FakeGpuCollectivesTest, Broadcast) {
  expect_no_hazards([](const GpuRank& self) {
    for (int root = 0; root < self.size; ++root) {
      DeviceArray<std::int32_t> buffer(self, values_of(self.rank, 5));
      self.communicator.broadcast(buffer.data(), 5, DType::Int32, root, nullptr);
      self.communicator.broadcast(nullptr, 0, DType::Int32, root, nullptr);
      self.hub.synchronize(self.rank, nullptr);
      EXPECT_EQ(buffer.get(), values_of(root, 5));
    }
  });
}

TEST(FakeGpuCollectivesTest, AllToAll) {
  expect_no_hazards([](const GpuRank& self) {
    const auto count = [](int from, int to) { return static_cast<std::size_t>((from + to) % 3); };
    std::vector<std::size_t> sent;
    std::vector<std::size_t> received;
    std::vector<std::int32_t> input;
    std::vector<std::int32_t> expected;
    for (int peer = 0; peer < self.size; ++peer) {
      sent.push_back(count(self.rank, peer));
      received.push_back(count(peer, self.rank));
      for (std::size_t i = 0; i < sent.back(); ++i) {
        input.push_back(value_at(10 * self.rank + peer, i));
      }
      for (std::size_t i = 0; i < received.back(); ++i) {
        expected.push_back(value_at(10 * peer + self.rank, i));
      }
    }
    DeviceArray<std::int32_t> from(self, input);
    DeviceArray<std::int32_t> to(self, expected.size());
    self.communicator.all_to_all(from.data(), sent, to.data(), received, DType::Int32, nullptr);
    self.hub.synchronize(self.rank, nullptr);
    EXPECT_EQ(to.get(), expected);
  });
}

TEST(FakeGpuCollectivesTest, RefusesWhatNcclCannotReduce) {
  expect_no_hazards([](const GpuRank& self) {
    DeviceArray<float> array(self, 1);
    const auto reduce = [&](DType dtype, comm::DeviceReduction reduction) {
      self.communicator.all_reduce(array.data(), array.data(), 1, dtype, reduction, nullptr);
    };
    EXPECT_THROW(reduce(DType::Int16, {}), InvalidArgument);
    EXPECT_THROW(reduce(DType::Bool, {}), InvalidArgument);
    EXPECT_THROW(reduce(DType::Float32, {.op = ReduceOp::Average}), InvalidArgument);
    EXPECT_THROW(reduce(DType::Int32, {.factor = 0.5}), InvalidArgument);
    EXPECT_THROW(reduce(DType::Float32, {.op = ReduceOp::Max, .factor = 0.5}), InvalidArgument);
    const std::vector<std::size_t> counts{1};
    EXPECT_THROW(
        self.communicator.all_gather(array.data(), array.data(), counts, DType::Float32, nullptr),
        InvalidArgument);
  });
}

}  // namespace kolo::test::fake_collectives_test
