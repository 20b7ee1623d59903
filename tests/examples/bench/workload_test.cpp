#include "bench/workload.hpp"

#include <algorithm>

#include <gtest/gtest.h>

#include "bench/rank.hpp"

namespace workload_test {

using bench::Operation;
using kolo::DType;

// The figures of nccl-tests' documentation.
TEST(BenchWorkload, BusFactorsAreThoseOfNcclTests) {
  EXPECT_DOUBLE_EQ(bench::bus_factor(Operation::AllReduce, 4), 1.5);
  EXPECT_DOUBLE_EQ(bench::bus_factor(Operation::ReduceScatter, 4), 0.75);
  EXPECT_DOUBLE_EQ(bench::bus_factor(Operation::AllGather, 4), 0.75);
  EXPECT_DOUBLE_EQ(bench::bus_factor(Operation::AllToAll, 4), 0.75);
  EXPECT_DOUBLE_EQ(bench::bus_factor(Operation::Broadcast, 4), 1);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(bench::bus_factor(static_cast<Operation>(i), 1), 0);
}

TEST(BenchWorkload, BytesAreTheLargerOfInputAndOutput) {
  for (int i = 0; i < 5; ++i) {
    const auto operation = static_cast<Operation>(i);
    const bool is_whole = operation == Operation::AllReduce || operation == Operation::Broadcast;
    const auto workload = bench::workload_of(operation, DType::Float32, 1000, 1, 3);
    EXPECT_EQ(workload.counts, std::vector<std::size_t>{is_whole ? 250U : 83U});
    EXPECT_EQ(bench::size_bytes(workload, 3), is_whole ? 1000U : 996U);
  }
}

TEST(BenchWorkload, GroupsShareTheBytes) {
  const auto workload = bench::workload_of(Operation::AllReduce, DType::Int16, 1000, 3, 2);
  EXPECT_EQ(workload.counts, (std::vector<std::size_t>{166, 166, 166}));
  EXPECT_EQ(bench::element_count(workload, 2), 498U);
}

TEST(BenchWorkload, TooFewBytesMakeOneElementEach) {
  const auto workload = bench::workload_of(Operation::AllToAll, DType::Float64, 8, 2, 4);
  EXPECT_EQ(workload.counts, (std::vector<std::size_t>{1, 1}));
}

TEST(BenchLayout, InPlaceMeansThisRanksPart) {
  const auto offsets = [](Operation operation, bool in_place) {
    const bench::Layout layout =
        bench::plan_layout({operation, DType::Float32, {10}}, in_place, 2, 4);
    return std::pair(layout.places[0].input, layout.places[0].output);
  };
  using Pair = std::pair<std::size_t, std::size_t>;
  EXPECT_EQ(offsets(Operation::AllReduce, true), (Pair{0, 0}));
  EXPECT_EQ(offsets(Operation::AllGather, true), (Pair{80, 0}));
  EXPECT_EQ(offsets(Operation::ReduceScatter, true), (Pair{0, 80}));
  EXPECT_EQ(offsets(Operation::Broadcast, false), (Pair{0, 0}));
  EXPECT_EQ(offsets(Operation::AllReduce, false), (Pair{0, 64}));
  EXPECT_EQ(offsets(Operation::AllToAll, true), (Pair{0, 192}));
}

TEST(BenchLayout, HasRoomForAllAndNoOverlap) {
  for (int i = 0; i < 5; ++i) {
    for (const bool in_place : {true, false}) {
      const bench::Workload workload{static_cast<Operation>(i), DType::Float32, {33, 7}};
      const bench::Layout layout = bench::plan_layout(workload, in_place, 1, 2);
      const auto end_of = [&](std::size_t number) {
        const auto& place = layout.places[number];
        return std::max(place.input + 4 * bench::input_count(workload.operation, place.count, 2),
                        place.output + 4 * bench::output_count(workload.operation, place.count, 2));
      };
      EXPECT_LE(end_of(0), std::min(layout.places[1].input, layout.places[1].output)) << i;
      EXPECT_LE(end_of(1), layout.size_bytes) << i;
    }
  }
}

}  // namespace workload_test
