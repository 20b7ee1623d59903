// The Adasum all-reduce, compared with a recursion over whole vectors that folds and pairs in the
// same order.

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "contract/algorithm_contract.hpp"
#include "contract/reduce_case.hpp"
#include "ops/adasum_reference.hpp"
#include "ops/registry.hpp"
#include "support/sanitizers.hpp"

namespace kolo::test::adasum_test {

constexpr DType kFloatingTypes[] = {DType::Float16, DType::BFloat16, DType::Float32,
                                    DType::Float64};

double epsilon_of(DType dtype) {
  switch (dtype) {
    case DType::Float16: return 0x1p-10;
    case DType::BFloat16: return 0x1p-7;
    case DType::Float32: return 0x1p-23;
    default: return 0x1p-52;
  }
}

class AdasumTest : public testing::TestWithParam<int> {
 protected:
  std::size_t ranks() const { return static_cast<std::size_t>(GetParam()); }

  /// Reduces `vectors`, one per rank, as `dtype`, and returns rank 0's result; all ranks must have
  /// the same bits.
  Vector reduce(DType dtype, const std::vector<Vector>& vectors,
                const Reduction& reduction = {ReduceOp::Adasum}, ReduceCase item = {},
                const Timing& timing = {}) const {
    const std::size_t count = vectors[0].size();
    const std::size_t shift = item.offset * size_of(dtype);
    std::vector<GuardedBuffer> inputs(vectors.size(), GuardedBuffer(count * size_of(dtype), shift));
    std::vector<GuardedBuffer> outputs = inputs;
    for (std::size_t rank = 0; rank < vectors.size(); ++rank) {
      for (std::size_t i = 0; i < count; ++i) {
        set_value(dtype, inputs[rank].data(), i, vectors[rank][i]);
      }
    }
    const std::vector<GuardedBuffer> originals = inputs;
    const auto run = [&](const Rank& rank) -> Task {
      const auto self = static_cast<std::size_t>(rank.rank);
      if (item.in_place) outputs[self].fill(inputs[self].bytes());
      std::byte* output = outputs[self].data();
      co_await run_checked(rank, adasum_,
                           {.input = item.in_place ? output : inputs[self].data(),
                            .output = output,
                            .count = count,
                            .dtype = dtype,
                            .reduction = reduction,
                            .segment_bytes = item.segment_bytes});
    };
    run_tasks_on_ranks(static_cast<int>(vectors.size()), kContractWindowBytes, timing.seed, run,
                       timing.schedule);
    Vector result(count);
    for (std::size_t rank = 0; rank < vectors.size(); ++rank) {
      EXPECT_TRUE(outputs[rank].holds(outputs[0].bytes())) << "ranks 0 and " << rank;
      EXPECT_TRUE(outputs[rank].is_guard_intact()) << "rank " << rank;
      EXPECT_TRUE(inputs[rank].holds(originals[rank].bytes())) << "input of rank " << rank;
    }
    for (std::size_t i = 0; i < count; ++i) result[i] = value_at(dtype, outputs[0].data(), i);
    return result;
  }

  std::vector<Vector> mixed_vectors(DType dtype, std::size_t count) const {
    std::vector<Vector> vectors(ranks(), Vector(count));
    for (std::size_t rank = 0; rank < ranks(); ++rank) {
      for (std::size_t i = 0; i < count; ++i) {
        vectors[rank][i] = reduce_value({.dtype = dtype}, static_cast<int>(rank), i) / 100;
      }
      vectors[rank] = rounded(dtype, vectors[rank]);
    }
    return vectors;
  }

  /// Compares every element, with a tolerance of a few roundings of the largest.
  void expect_near(DType dtype, const Vector& result, const Vector& expected) const {
    ASSERT_EQ(result.size(), expected.size());
    double largest = 0;
    for (const double value : expected) largest = std::max(largest, std::fabs(value));
    const double tolerance = 4 * static_cast<double>(ranks()) * epsilon_of(dtype) * largest;
    for (std::size_t i = 0; i < result.size(); ++i) {
      ASSERT_NEAR(result[i], expected[i], tolerance) << name_of(dtype) << ", element " << i;
    }
  }

  const ops::Registry registry_;
  const Algorithm& adasum_ = registry_.find(Collective::AllReduce, "adasum");
};

TEST_P(AdasumTest, FollowsTheRecursion) {
  for (const DType dtype : kFloatingTypes) {
    for (const std::size_t count : {0u, 1u, 2u, 5u, 101u, 1500u}) {
      for (const std::size_t segment_bytes : {64u, 4096u}) {
        for (const bool in_place : {false, true}) {
          SCOPED_TRACE(testing::Message() << count << " elements, segments of " << segment_bytes);
          const std::vector<Vector> vectors = mixed_vectors(dtype, count);
          const Reduction reduction{ReduceOp::Adasum, in_place ? 0.5 : 1.0, in_place ? 3.0 : 1.0};
          const ReduceCase item{
              .segment_bytes = segment_bytes, .in_place = in_place, .offset = count % 4};
          expect_near(dtype, reduce(dtype, vectors, reduction, item),
                      reference_adasum(dtype, vectors, reduction));
        }
      }
    }
  }
}

TEST_P(AdasumTest, ZeroVectors_ContributeNothing) {
  const Vector zeros(77);
  Vector only(77);
  std::iota(only.begin(), only.end(), -30.0);
  for (const DType dtype : kFloatingTypes) {
    EXPECT_EQ(reduce(dtype, std::vector<Vector>(ranks(), zeros)), zeros) << name_of(dtype);
    for (std::size_t rank = 0; rank < ranks(); ++rank) {
      std::vector<Vector> vectors(ranks(), zeros);
      vectors[rank] = only;
      EXPECT_EQ(reduce(dtype, vectors), only) << name_of(dtype) << ", rank " << rank;
    }
  }
}

/// Where squares overflow or underflow, equal vectors still give the same vector, and others give
/// the result of the same vectors at magnitude 1.
TEST_P(AdasumTest, HugeAndTinyValues) {
  struct Magnitude {
    DType dtype;
    double factor;
  };
  for (const Magnitude magnitude :
       {Magnitude{DType::Float64, 0x1p1015}, Magnitude{DType::Float64, 0x1p-1000},
        Magnitude{DType::Float32, 0x1p120}, Magnitude{DType::Float32, 0x1p-100},
        Magnitude{DType::BFloat16, 0x1p120}, Magnitude{DType::BFloat16, 0x1p-100}}) {
    std::vector<Vector> vectors = mixed_vectors(magnitude.dtype, 63);
    const Vector expected = reduce(magnitude.dtype, vectors);
    for (Vector& vector : vectors) vector = scaled(magnitude.dtype, vector, magnitude.factor);
    EXPECT_EQ(reduce(magnitude.dtype, vectors), scaled(magnitude.dtype, expected, magnitude.factor))
        << name_of(magnitude.dtype) << " times " << magnitude.factor;
  }
  // Near float64's smallest value: only a zero vector may have a square of zero.
  const Vector least(9, std::numeric_limits<double>::denorm_min() * 8);
  EXPECT_EQ(reduce(DType::Float64, std::vector<Vector>(ranks(), least)), least);
}

TEST_P(AdasumTest, NotANumber_ReachesEveryRank) {
  for (const DType dtype : kFloatingTypes) {
    std::vector<Vector> vectors = mixed_vectors(dtype, 33);
    vectors.back()[7] = std::numeric_limits<double>::quiet_NaN();
    EXPECT_TRUE(std::isnan(reduce(dtype, vectors)[7])) << name_of(dtype);
  }
}

TEST_P(AdasumTest, SameBitsWhateverTheTiming) {
  for (const DType dtype : {DType::BFloat16, DType::Float32}) {
    const std::vector<Vector> vectors = mixed_vectors(dtype, 301);
    const Vector first = reduce(dtype, vectors);
    for (const Timing& timing : other_timings()) {
      EXPECT_EQ(reduce(dtype, vectors, {ReduceOp::Adasum}, {}, timing), first) << timing;
    }
  }
}

TEST_P(AdasumTest, Bytes_FollowTheirFormula) {
  const std::size_t count = 960;  // divisible by all powers of two that occur
  const std::size_t participants = std::bit_floor(ranks());
  const std::size_t steps = static_cast<std::size_t>(std::bit_width(participants)) - 1;
  std::vector<std::uint64_t> sent(ranks());
  std::vector<std::vector<float>> buffers(ranks(), std::vector<float>(count, 1));
  run_tasks_on_ranks(GetParam(), kContractWindowBytes, kFirstSeed, [&](const Rank& rank) -> Task {
    const auto self = static_cast<std::size_t>(rank.rank);
    auto* buffer = reinterpret_cast<std::byte*>(buffers[self].data());
    co_await run_checked(rank, adasum_,
                         {.input = buffer,
                          .output = buffer,
                          .count = count,
                          .reduction = {ReduceOp::Adasum},
                          .segment_bytes = 256});
    sent[self] = rank.communicator.bytes_sent();
  });
  const std::size_t whole = count * sizeof(float);
  for (std::size_t rank = 0; rank < ranks(); ++rank) {
    const bool is_in_pair = rank < 2 * (ranks() - participants);
    if (is_in_pair && rank % 2 == 1) {
      EXPECT_EQ(sent[rank], whole) << "rank " << rank;
      continue;
    }
    EXPECT_EQ(sent[rank], 2 * (participants - 1) * whole / participants +
                              steps * (steps + 1) / 2 * 40 + (is_in_pair ? whole : 0))
        << "rank " << rank;
  }
}

TEST_P(AdasumTest, AbandonedTasks_LeaveNothingBehind) {
  const ReduceCase item{.dtype = DType::Float16,
                        .reduction = {ReduceOp::Adasum, 0.5},
                        .count = 300,
                        .in_place = true};
  for (int polls = 0; polls < 40; ++polls) {
    std::vector<ReduceBuffers> buffers;
    for (int rank = 0; rank < GetParam(); ++rank) buffers.emplace_back(item, rank);
    run_tasks_on_ranks(GetParam(), kContractWindowBytes, kFirstSeed, [&](const Rank& rank) -> Task {
      CollectiveCall call = buffers[static_cast<std::size_t>(rank.rank)].call();
      call.communicator = &rank.communicator;
      Task task = adasum_.run(call);
      const int limit = polls * (rank.rank + 1);
      for (int i = 0; i < limit && task.poll() != Progress::Done; ++i) co_await yield();
    });
    for (const ReduceBuffers& buffer : buffers) buffer.expect_guards_intact();
  }
}

const std::vector<int> kWorlds =
    kIsSanitized ? std::vector<int>{1, 3} : std::vector<int>{1, 2, 3, 4, 5, 7, 8};
INSTANTIATE_TEST_SUITE_P(Worlds, AdasumTest, testing::ValuesIn(kWorlds),
                         testing::PrintToStringParamName());

class AdasumPairTest : public AdasumTest {};

TEST_P(AdasumPairTest, TwoRanks_GiveTheClosedForm) {
  const Vector a{3, 0, 1};
  const Vector b{1, 2, -1};  // a·b = 2, |a|² = 10, |b|² = 6
  const Vector result = reduce(DType::Float64, {a, b});
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_NEAR(result[i], a[i] * (1 - 2.0 / 20) + b[i] * (1 - 2.0 / 12), 1e-15);
  }
}

INSTANTIATE_TEST_SUITE_P(Pair, AdasumPairTest, testing::Values(2),
                         testing::PrintToStringParamName());

}  // namespace kolo::test::adasum_test
