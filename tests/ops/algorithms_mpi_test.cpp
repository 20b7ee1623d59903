// All reduction algorithms among processes, with messages over MPI and real shared memory.

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "contract/reduce_case.hpp"
#include "ops/algorithms_over_mpi.hpp"
#include "ops/steps/reduction_plan.hpp"

namespace kolo::test::algorithms_mpi_test {

using AlgorithmsMpiTest = AlgorithmsOverMpi;

TEST_F(AlgorithmsMpiTest, EveryAllReduce_EveryTypeAndOperation) {
  for (const Algorithm& algorithm : of(Collective::AllReduce)) {
    SCOPED_TRACE(algorithm.name);
    for (const DType dtype : kAllDTypes) {
      for (const ReduceOp op : kAllOps) {
        if (!is_defined(dtype, op)) continue;
        for (const std::size_t count : {0u, 1u, 3u, 331u, 1013u}) {
          // Each count both ways, over all operations.
          const bool in_place = (static_cast<std::size_t>(op) + count) % 2 != 0;
          const ReduceCase item{dtype, {op, 0.5, in_place ? 1.0 : 3.0}, count, 512, in_place, 1};
          const std::vector<std::byte> result = reduce(algorithm, item);
          expect_reduced(item, result, size(), algorithm.rank_ordered);
          expect_same_on_all_ranks(item, result);
        }
      }
    }
  }
}

TEST_F(AlgorithmsMpiTest, Adasum_OfOrthogonalVectorsIsTheirSum) {
  const Algorithm& algorithm = registry_.find(Collective::AllReduce, "adasum");
  std::vector<float> values(100'003);
  std::vector<float> expected(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    expected[i] = static_cast<float>(i % 97) - 48;
    if (i % ranks() == static_cast<std::size_t>(rank())) values[i] = expected[i];
  }
  auto* buffer = reinterpret_cast<std::byte*>(values.data());
  run(algorithm, {.input = buffer,
                  .output = buffer,
                  .count = values.size(),
                  .reduction = {ReduceOp::Adasum},
                  .segment_bytes = 16384});
  EXPECT_EQ(values, expected);
}

TEST_F(AlgorithmsMpiTest, Adasum_HasTheSameBitsOnAllRanks) {
  const Algorithm& algorithm = registry_.find(Collective::AllReduce, "adasum");
  for (const DType dtype : {DType::Float16, DType::BFloat16, DType::Float32, DType::Float64,
                            DType::Complex64, DType::Complex128}) {
    const ReduceCase item{
        .dtype = dtype, .reduction = {ReduceOp::Adasum, 0.5, 3}, .count = 3001, .in_place = true};
    expect_same_on_all_ranks(item, reduce(algorithm, item));
  }
}

TEST_F(AlgorithmsMpiTest, LongMessages_ThroughEveryAllReduce) {
  for (const Algorithm& algorithm : of(Collective::AllReduce)) {
    for (const bool in_place : {false, true}) {
      const ReduceCase item{.count = 150'001, .segment_bytes = 65536, .in_place = in_place};
      expect_reduced(item, reduce(algorithm, item), size(), algorithm.rank_ordered);
    }
  }
}

TEST_F(AlgorithmsMpiTest, EveryReduceScatter_EveryTypeAndOperation) {
  for (const Algorithm& algorithm : of(Collective::ReduceScatter)) {
    SCOPED_TRACE(algorithm.name);
    for (const DType dtype : kAllDTypes) {
      for (const ReduceOp op : kAllOps) {
        if (!is_defined(dtype, op)) continue;
        for (const std::size_t largest : {0u, 1u, 331u}) {
          for (const bool in_place : {false, true}) {
            const Reduction reduction{op, 0.5, in_place ? 1.0 : 3.0};
            check_reduce_scatter(algorithm, uneven(largest),
                                 {.dtype = dtype,
                                  .reduction = reduction,
                                  .segment_bytes = 512,
                                  .in_place = in_place,
                                  .offset = 1});
          }
        }
      }
    }
  }
}

TEST_F(AlgorithmsMpiTest, LongMessages_ThroughEveryReduceScatter) {
  for (const Algorithm& algorithm : of(Collective::ReduceScatter)) {
    SCOPED_TRACE(algorithm.name);
    check_reduce_scatter(algorithm, uneven(80'001), {.segment_bytes = 65536});
    check_reduce_scatter(algorithm, uneven(80'001), {.segment_bytes = 65536, .in_place = true});
  }
}

}  // namespace kolo::test::algorithms_mpi_test
