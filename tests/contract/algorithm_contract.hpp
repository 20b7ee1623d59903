#pragma once

// The requirements on every algorithm, for all kinds of world sizes, counts, types, operations,
// memory and timing. The suite of each collective has its own header; this one holds their common
// parts. A test file instantiates a collective's suite for its algorithms:
//
//   INSTANTIATE_TEST_SUITE_P(Mine, AllReduceContract, contract_cases({my_algorithm}),
//                            name_contract_case);

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "contract/checked_communicator.hpp"
#include "contract/ranks.hpp"
#include "kolo/algorithm.hpp"
#include "support/sanitizers.hpp"

namespace kolo {

/// For the names of failed cases.
inline void PrintTo(const Algorithm& algorithm, std::ostream* out) {
  *out << name_of(algorithm.collective) << " by " << algorithm.name;
}

}  // namespace kolo

namespace kolo::test {

using Worlds = std::vector<int>;
inline const Worlds kContractWorlds = kIsThreadSanitized ? Worlds{1, 3}
                                      : kIsSanitized     ? Worlds{1, 2, 3, 5}
                                                         : Worlds{1, 2, 3, 4, 7};
inline const Worlds kContractWorldsOfNodes = kIsThreadSanitized ? Worlds{2, 6}
                                             : kIsSanitized     ? Worlds{2, 3, 6}
                                                                : Worlds{2, 3, 4, 6, 9};
inline constexpr std::size_t kContractWindowBytes = 4096;
inline constexpr std::uint64_t kFirstSeed = 1;

/// What decides how ranks meet.
struct Timing {
  std::uint64_t seed = kFirstSeed;
  Schedule schedule = kFastestSchedule;
};

inline std::ostream& operator<<(std::ostream& out, const Timing& timing) {
  return out << "seed " << timing.seed
             << (timing.schedule == Schedule::Threads ? " on threads" : " interleaved");
}

/// Repeats with these must give the result of the first run.
inline std::vector<Timing> other_timings() {
  std::vector<Timing> timings;
  for (std::uint64_t seed = kFirstSeed + 1; seed <= kFirstSeed + 4; ++seed) {
    timings.push_back({seed, Schedule::Threads});
  }
  if (kIsSanitized) return timings;
  for (std::uint64_t seed = kFirstSeed + 1; seed <= kFirstSeed + 20; ++seed) {
    timings.push_back({seed, Schedule::Interleaved});
  }
  return timings;
}

using ContractCase = std::tuple<Algorithm, int>;

/// Every algorithm in every world that it supports.
inline auto contract_cases(const std::vector<Algorithm>& algorithms) {
  std::vector<ContractCase> cases;
  for (const Algorithm& algorithm : algorithms) {
    const bool has_nodes = algorithm.needs == Needs::Nodes;  // see scattered_nodes
    for (const int size : has_nodes ? kContractWorldsOfNodes : kContractWorlds) {
      cases.emplace_back(algorithm, size);
    }
  }
  return testing::ValuesIn(cases);
}

inline std::string name_contract_case(const testing::TestParamInfo<ContractCase>& info) {
  return std::string(std::get<0>(info.param).name) + "_world" +
         std::to_string(std::get<1>(info.param));
}

class AlgorithmContract : public testing::TestWithParam<ContractCase> {
 protected:
  /// Returns one rank's call, without communicator, window and nodes, right before it runs.
  using MakeCall = std::function<CollectiveCall(std::size_t index, int rank)>;
  /// Called on a rank as soon as its call has ended.
  using End = std::function<void(std::size_t index, int rank)>;

  const Algorithm& algorithm() const { return std::get<0>(GetParam()); }
  int size() const { return std::get<1>(GetParam()); }
  std::size_t ranks() const { return static_cast<std::size_t>(size()); }
  bool has_peer_buffers() const { return algorithm().needs == Needs::PeerBuffers; }

  /// Runs calls 0 … `calls` - 1 consecutively, without a pause between them, on all ranks
  /// simultaneously.
  void run_calls(std::size_t calls, const MakeCall& make_call, const End& end,
                 const Timing& timing) const {
    const auto run = [&](const Rank& rank) -> Task {
      for (std::size_t i = 0; i < calls; ++i) {
        co_await start(rank, make_call(i, rank.rank));
        end(i, rank.rank);
      }
    };
    run_tasks_on_ranks(size(), kContractWindowBytes, timing.seed, run, timing.schedule);
  }

  /// A failed run may destroy its tasks at any point: polls call 0 a different number of times on
  /// every rank, then destroys it. No memory may be damaged; the world is not used again.
  void abandon_call(int polls, const MakeCall& make_call) const {
    run_tasks_on_ranks(size(), kContractWindowBytes, kFirstSeed, [&](const Rank& rank) -> Task {
      Task task = start(rank, make_call(0, rank.rank));
      const int limit = polls * (rank.rank + 1);
      for (int i = 0; i < limit && task.poll() != Progress::Done; ++i) co_await yield();
    });
  }

  /// Distributions of elements over ranks: none, one each, many each, uneven, all on one rank.
  std::vector<std::vector<std::size_t>> distributions() const {
    std::vector<std::size_t> uneven(ranks());
    for (std::size_t i = 0; i < ranks(); ++i) uneven[i] = i * 37 % 90;  // rank 0 has none
    std::vector<std::size_t> first(ranks(), 0);
    first.front() = 131;
    return {std::vector<std::size_t>(ranks(), 0),   std::vector<std::size_t>(ranks(), 1),
            std::vector<std::size_t>(ranks(), 101), uneven,
            {uneven.rbegin(), uneven.rend()},       first,
            {first.rbegin(), first.rend()}};
  }

 private:
  Task start(const Rank& rank, const CollectiveCall& call) const {
    return run_checked(rank, algorithm(), call);
  }
};

}  // namespace kolo::test
