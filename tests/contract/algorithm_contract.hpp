#pragma once

// What every algorithm must do, whoever wrote it: worlds, counts, types, operations, memory and
// timing of all kinds. A test file instantiates the suite of a collective for its algorithms:
//
//   INSTANTIATE_TEST_SUITE_P(Mine, AllReduceContract,
//                            testing::Combine(testing::Values(my_algorithm),
//                                             testing::ValuesIn(kContractWorlds)),
//                            name_contract_case);

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "contract/ranks.hpp"
#include "contract/reduce_case.hpp"
#include "kolo/algorithm.hpp"
#include "ops/kernels.hpp"
#include "ops/reduction_plan.hpp"

namespace kolo::test {

inline constexpr int kContractWorlds[] = {1, 2, 3, 4, 7};
inline constexpr std::size_t kContractWindowBytes = 4096;

using ContractCase = std::tuple<Algorithm, int>;

inline std::string name_contract_case(const testing::TestParamInfo<ContractCase>& info) {
  return std::string(std::get<0>(info.param).name) + "_world" +
         std::to_string(std::get<1>(info.param));
}

/// Polls `task` to its end, now and then with a pause, so that ranks meet in ever other orders.
inline void finish(Task task, std::mt19937_64& random) {
  while (task.poll() != Progress::Done) {
    if (random() % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 20));
    std::this_thread::yield();
  }
}

inline std::mt19937_64 random_of(const Rank& rank) {
  return std::mt19937_64(rank.seed * 1009 + static_cast<std::uint64_t>(rank.rank));
}

class AlgorithmContract : public testing::TestWithParam<ContractCase> {
 protected:
  const Algorithm& algorithm() const { return std::get<0>(GetParam()); }
  int size() const { return std::get<1>(GetParam()); }
  std::size_t ranks() const { return static_cast<std::size_t>(size()); }
};

class AllReduceContract : public AlgorithmContract {
 protected:
  using Results = std::vector<std::vector<std::vector<std::byte>>>;  // by case and rank

  /// Runs the cases one after another, without a pause between them, on all ranks at once; then
  /// checks that nothing was written but the outputs.
  Results run(std::vector<ReduceCase> cases, std::uint64_t seed = 1) const {
    std::vector<std::vector<ReduceBuffers>> buffers(cases.size());
    std::vector<std::vector<std::byte*>> outputs(cases.size());
    for (std::size_t i = 0; i < cases.size(); ++i) {
      if (algorithm().needs == Needs::PeerBuffers) cases[i].in_place = true;
      for (int rank = 0; rank < size(); ++rank) buffers[i].emplace_back(cases[i], rank);
      for (ReduceBuffers& buffer : buffers[i]) outputs[i].push_back(buffer.output());
    }
    Results results(cases.size(), std::vector<std::vector<std::byte>>(ranks()));
    run_on_ranks(size(), kContractWindowBytes, seed, [&](const Rank& rank) {
      const auto self = static_cast<std::size_t>(rank.rank);
      std::mt19937_64 random = random_of(rank);
      for (std::size_t i = 0; i < cases.size(); ++i) {
        buffers[i][self].fill();
        CollectiveCall call = buffers[i][self].call();
        call.communicator = &rank.communicator;
        call.window = &rank.window;
        if (algorithm().needs == Needs::PeerBuffers) call.peer_buffers = outputs[i];
        finish(algorithm().run(call), random);
        results[i][self] = buffers[i][self].result();
      }
    });
    for (std::vector<ReduceBuffers>& of_case : buffers) {
      for (ReduceBuffers& buffer : of_case) buffer.expect_bounds_kept();
    }
    return results;
  }

  /// Runs the cases and compares with the reference and between ranks.
  void check(const std::vector<ReduceCase>& cases) const {
    const Results results = run(cases);
    for (std::size_t i = 0; i < cases.size(); ++i) {
      for (std::size_t rank = 1; rank < ranks(); ++rank) {
        EXPECT_EQ(results[i][rank], results[i][0]) << cases[i] << ", ranks 0 and " << rank;
      }
      expect_reduced(cases[i], results[i][0], size(), algorithm().rank_ordered);
      if (HasFatalFailure()) return;
    }
  }
};

TEST_P(AllReduceContract, EveryCount) {
  std::vector<ReduceCase> cases;
  for (const std::size_t count :
       {std::size_t{0}, std::size_t{1}, ranks() - 1, ranks(), ranks() + 1, std::size_t{101},
        16 * ranks(), std::size_t{523}, 32 * ranks() + 1}) {  // one piece has a segment more
    for (const std::size_t segment_bytes : {64u, 192u, 4096u}) {
      for (const bool in_place : {false, true}) {
        cases.push_back({.count = count, .segment_bytes = segment_bytes, .in_place = in_place});
      }
    }
  }
  // Longer than the window, so that its memory is used again and again.
  cases.push_back({.count = 9001, .segment_bytes = 4096});
  check(cases);
}

TEST_P(AllReduceContract, EveryTypeAndOperation) {
  std::vector<ReduceCase> cases;
  for (const DType dtype : kAllDTypes) {
    for (const ReduceOp op : kAllOps) {
      if (!ops::is_combinable(dtype, op)) continue;
      for (const bool in_place : {false, true}) {
        cases.push_back({dtype, {op}, 203, 128, in_place, 1});
        cases.push_back({dtype, {op, 0.5, 1.5}, 203, 64, in_place, 0});
        cases.push_back({dtype, {op, 1.0, 1.0 / 3}, 57, 128, in_place, 3});
      }
    }
  }
  check(cases);
}

TEST_P(AllReduceContract, MisalignedBuffers) {
  std::vector<ReduceCase> cases;
  for (const DType dtype : {DType::Int8, DType::BFloat16, DType::Float64}) {
    for (std::size_t offset = 1; offset < 12; offset += 2) {
      cases.push_back({.dtype = dtype, .count = 150, .offset = offset});
    }
  }
  check(cases);
}

TEST_P(AllReduceContract, SameBitsWhateverTheTiming) {
  const std::vector<ReduceCase> cases{
      {.dtype = DType::Float32, .count = 301},
      {.dtype = DType::Float16, .count = 77, .segment_bytes = 128, .in_place = true},
      {.dtype = DType::Float64, .reduction = {ReduceOp::Product}, .count = 64}};
  const Results first = run(cases, 1);
  for (std::uint64_t seed = 2; seed < 8; ++seed) EXPECT_EQ(run(cases, seed), first) << seed;
}

/// The mean of finite numbers is finite, though their sum is not.
TEST_P(AllReduceContract, AverageOfLargeHalves_StaysFinite) {
  for (const DType dtype : {DType::Float16, DType::BFloat16}) {
    const double value = dtype == DType::Float16 ? 30000 : 0x1p127;
    const ops::ReductionPlan plan =
        ops::plan_reduction(dtype, ReduceOp::Average, 1, 1, algorithm().rank_ordered, size());
    const std::size_t count = 70;
    std::vector<std::vector<std::byte>> buffers(ranks());
    std::vector<std::byte*> pointers;
    for (std::vector<std::byte>& buffer : buffers) {
      buffer.resize(count * 2);
      for (std::size_t i = 0; i < count; ++i) set_value(dtype, buffer.data(), i, value);
      pointers.push_back(buffer.data());
    }
    run_on_ranks(size(), kContractWindowBytes, 1, [&](const Rank& rank) {
      std::byte* buffer = pointers[static_cast<std::size_t>(rank.rank)];
      std::mt19937_64 random = random_of(rank);
      finish(algorithm().run({.communicator = &rank.communicator,
                              .window = &rank.window,
                              .peer_buffers = pointers,
                              .input = buffer,
                              .output = buffer,
                              .count = count,
                              .dtype = dtype,
                              .reduction = plan.reduction,
                              .segment_bytes = 64}),
             random);
    });
    for (std::size_t i = 0; i < count; ++i) {
      EXPECT_NEAR(value_at(dtype, pointers[0], i), value, value / 64) << name_of(dtype);
    }
  }
}

TEST_P(AllReduceContract, NotANumber_ReachesEveryRank) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  const std::size_t count = 40;
  for (const ReduceOp op : kAllOps) {
    std::vector<std::vector<float>> buffers(ranks(), std::vector<float>(count, 1.0f));
    std::vector<std::byte*> pointers;
    for (std::size_t rank = 0; rank < ranks(); ++rank) {
      buffers[rank][3 + 5 * rank] = static_cast<float>(kNaN);
      pointers.push_back(reinterpret_cast<std::byte*>(buffers[rank].data()));
    }
    run_on_ranks(size(), kContractWindowBytes, 1, [&](const Rank& rank) {
      std::byte* buffer = pointers[static_cast<std::size_t>(rank.rank)];
      std::mt19937_64 random = random_of(rank);
      finish(algorithm().run({.communicator = &rank.communicator,
                              .window = &rank.window,
                              .peer_buffers = pointers,
                              .input = buffer,
                              .output = buffer,
                              .count = count,
                              .reduction = {op},
                              .segment_bytes = 64}),
             random);
    });
    for (std::size_t i = 0; i < count; ++i) {
      const bool is_expected = i >= 3 && (i - 3) % 5 == 0 && (i - 3) / 5 < ranks();
      EXPECT_EQ(std::isnan(buffers[0][i]), is_expected) << name_of(op) << ", element " << i;
    }
  }
}

/// A run that failed drops its tasks wherever they are. Memory must stay in order; the world is not
/// used again.
TEST_P(AllReduceContract, AbandonedTasks_LeaveNothingBehind) {
  for (int polls = 0; polls < 24; ++polls) {
    const ReduceCase item{
        .dtype = DType::Float16, .reduction = {ReduceOp::Sum, 0.5}, .count = 300, .in_place = true};
    std::vector<ReduceBuffers> buffers;
    std::vector<std::byte*> outputs;
    for (int rank = 0; rank < size(); ++rank) buffers.emplace_back(item, rank);
    for (ReduceBuffers& buffer : buffers) {
      buffer.fill();
      outputs.push_back(buffer.output());
    }
    run_on_ranks(size(), kContractWindowBytes, 1, [&](const Rank& rank) {
      CollectiveCall call = buffers[static_cast<std::size_t>(rank.rank)].call();
      call.communicator = &rank.communicator;
      call.window = &rank.window;
      call.peer_buffers = outputs;
      Task task = algorithm().run(call);
      const int limit = polls * (rank.rank + 1);
      for (int i = 0; i < limit && task.poll() != Progress::Done; ++i) std::this_thread::yield();
    });
    for (ReduceBuffers& buffer : buffers) buffer.expect_bounds_kept();
  }
}

class AllGatherContract : public AlgorithmContract {};

TEST_P(AllGatherContract, EveryDistributionOfCounts) {
  std::vector<std::vector<std::size_t>> distributions{std::vector<std::size_t>(ranks(), 0),
                                                      std::vector<std::size_t>(ranks(), 1),
                                                      std::vector<std::size_t>(ranks(), 101)};
  std::vector<std::size_t> uneven(ranks());
  for (std::size_t i = 0; i < ranks(); ++i) uneven[i] = i * 37 % 90;  // rank 0 has none
  distributions.push_back(uneven);
  std::reverse(uneven.begin(), uneven.end());
  distributions.push_back(uneven);
  const auto value = [](std::size_t rank, std::size_t i) {
    return static_cast<std::int16_t>(rank * 1000 + i);
  };

  for (const std::vector<std::size_t>& counts : distributions) {
    const std::size_t total = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
    for (const bool in_place : {false, true}) {
      std::vector<std::vector<std::int16_t>> inputs(ranks());
      std::vector<std::vector<std::int16_t>> outputs(ranks());
      std::vector<std::int16_t> expected;
      for (std::size_t rank = 0; rank < ranks(); ++rank) {
        for (std::size_t i = 0; i < counts[rank]; ++i) inputs[rank].push_back(value(rank, i));
        outputs[rank].resize(total + 1, -1);  // with a guard
        if (in_place)
          std::copy(inputs[rank].begin(), inputs[rank].end(), &outputs[rank][expected.size()]);
        expected.insert(expected.end(), inputs[rank].begin(), inputs[rank].end());
      }
      expected.push_back(-1);
      run_on_ranks(size(), kContractWindowBytes, 1, [&](const Rank& rank) {
        const auto self = static_cast<std::size_t>(rank.rank);
        const std::size_t begin =
            std::accumulate(counts.begin(), counts.begin() + rank.rank, std::size_t{0});
        std::mt19937_64 random = random_of(rank);
        const std::int16_t* input = in_place ? &outputs[self][begin] : inputs[self].data();
        finish(algorithm().run({.communicator = &rank.communicator,
                                .window = &rank.window,
                                .input = reinterpret_cast<const std::byte*>(input),
                                .output = reinterpret_cast<std::byte*>(outputs[self].data()),
                                .dtype = DType::Int16,
                                .gather_counts = counts,
                                .segment_bytes = 64}),
               random);
      });
      for (std::size_t rank = 0; rank < ranks(); ++rank) {
        EXPECT_EQ(outputs[rank], expected) << "rank " << rank << (in_place ? ", in place" : "");
      }
    }
  }
}

class BroadcastContract : public AlgorithmContract {};

TEST_P(BroadcastContract, EveryRootAndCount) {
  for (int root = 0; root < size(); ++root) {
    for (const std::size_t count : {0u, 1u, 16u, 17u, 331u}) {
      std::vector<std::vector<float>> buffers(ranks(), std::vector<float>(count + 1, -1));
      std::vector<float>& source = buffers[static_cast<std::size_t>(root)];
      for (std::size_t i = 0; i < count; ++i) source[i] = static_cast<float>(i * 7 + 1);
      const std::vector<float> expected = source;
      run_on_ranks(size(), kContractWindowBytes, 1, [&](const Rank& rank) {
        auto* buffer =
            reinterpret_cast<std::byte*>(buffers[static_cast<std::size_t>(rank.rank)].data());
        std::mt19937_64 random = random_of(rank);
        finish(algorithm().run({.communicator = &rank.communicator,
                                .window = &rank.window,
                                .output = buffer,
                                .count = count,
                                .root = root,
                                .segment_bytes = 64}),
               random);
      });
      for (std::size_t rank = 0; rank < ranks(); ++rank) {
        EXPECT_EQ(buffers[rank], expected) << "rank " << rank << ", root " << root;
      }
    }
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(AllReduceContract);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(AllGatherContract);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(BroadcastContract);

}  // namespace kolo::test
