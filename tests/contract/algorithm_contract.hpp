#pragma once

// The requirements on every algorithm, for all kinds of world sizes, counts, types, operations,
// memory and timing. The suite of each collective has its own header; this one holds their common
// parts. A test file instantiates a collective's suite for its algorithms:
//
//   INSTANTIATE_TEST_SUITE_P(Mine, AllReduceContract, contract_cases({my_algorithm}),
//                            name_contract_case);

#include <chrono>
#include <cstdint>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "contract/ranks.hpp"
#include "kolo/algorithm.hpp"
#include "support/sanitizers.hpp"

namespace kolo::test {

#if defined(__SANITIZE_THREAD__)
inline constexpr int kContractWorlds[] = {1, 3};  // ten times slower; races need no more
inline constexpr int kContractWorldsOfNodes[] = {2, 6};
#elif defined(__SANITIZE_ADDRESS__)
inline constexpr int kContractWorlds[] = {1, 2, 3, 5};  // the least with two levels and a rest
inline constexpr int kContractWorldsOfNodes[] = {2, 3, 6};
#else
inline constexpr int kContractWorlds[] = {1, 2, 3, 4, 7};
inline constexpr int kContractWorldsOfNodes[] = {2, 3, 4, 6, 9};  // see scattered_nodes
#endif
inline constexpr std::size_t kContractWindowBytes = 4096;
/// Seeds of the delays: repeats with these must give the result of the first run.
inline constexpr std::uint64_t kFirstSeed = 1;
inline constexpr std::uint64_t kLastSeed = kIsSanitized ? 5 : 12;

using ContractCase = std::tuple<Algorithm, int>;

/// Every algorithm in every world that it supports.
inline auto contract_cases(const std::vector<Algorithm>& algorithms) {
  std::vector<ContractCase> cases;
  for (const Algorithm& algorithm : algorithms) {
    std::span<const int> worlds = kContractWorlds;
    if (algorithm.needs == Needs::Nodes) worlds = kContractWorldsOfNodes;
    for (const int size : worlds) {
      cases.emplace_back(algorithm, size);
    }
  }
  return testing::ValuesIn(cases);
}

inline std::string name_contract_case(const testing::TestParamInfo<ContractCase>& info) {
  return std::string(std::get<0>(info.param).name) + "_world" +
         std::to_string(std::get<1>(info.param));
}

/// Polls `task` until it ends, with random pauses that vary how ranks meet.
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
                 std::uint64_t seed = kFirstSeed) const {
    run_on_ranks(size(), kContractWindowBytes, seed, [&](const Rank& rank) {
      std::mt19937_64 random = random_of(rank);
      for (std::size_t i = 0; i < calls; ++i) {
        finish(start(rank, make_call(i, rank.rank)), random);
        end(i, rank.rank);
      }
    });
  }

  /// A failed run may destroy its tasks at any point: polls call 0 a different number of times on
  /// every rank, then destroys it. No memory may be damaged; the world is not used again.
  void abandon_call(int polls, const MakeCall& make_call) const {
    run_on_ranks(size(), kContractWindowBytes, kFirstSeed, [&](const Rank& rank) {
      Task task = start(rank, make_call(0, rank.rank));
      const int limit = polls * (rank.rank + 1);
      for (int i = 0; i < limit && task.poll() != Progress::Done; ++i) std::this_thread::yield();
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
  Task start(const Rank& rank, CollectiveCall call) const {
    call.communicator = &rank.communicator;
    call.window = &rank.window;
    call.nodes = rank.nodes;
    return algorithm().run(call);
  }
};

}  // namespace kolo::test
