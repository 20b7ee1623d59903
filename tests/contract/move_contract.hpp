#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "contract/algorithm_contract.hpp"

namespace kolo::test {

/// The contract of a collective that only moves bytes. `Buffers` is one rank's memory, made from a
/// Case, which can be printed, and a rank: call() gives the rank's call, expect_result() and
/// expect_bounds_kept() look at the memory afterwards.
template <class Case, class Buffers>
class MoveContract : public AlgorithmContract {
 protected:
  void check(const std::vector<Case>& cases, std::uint64_t seed = kFirstSeed) const {
    AllBuffers buffers = make_buffers(cases);
    run_calls(
        cases.size(),
        [&](std::size_t i, int rank) { return buffers[i][static_cast<std::size_t>(rank)].call(); },
        seed);
    for (std::size_t i = 0; i < cases.size(); ++i) {
      for (std::size_t rank = 0; rank < ranks(); ++rank) {
        SCOPED_TRACE(testing::Message() << "rank " << rank << ", " << cases[i]);
        buffers[i][rank].expect_result();
        buffers[i][rank].expect_bounds_kept();
      }
    }
  }

  void check_timings(const std::vector<Case>& cases) const {
    for (std::uint64_t seed = kFirstSeed + 1; seed <= kLastSeed; ++seed) check(cases, seed);
  }

  /// Tasks that are let go of anywhere on their way leave nothing behind.
  void check_abandoned(const Case& item) const {
    for (int polls = 0; polls < 24; ++polls) {
      AllBuffers buffers = make_buffers({item});
      abandon_call(polls, [&](std::size_t, int rank) {
        return buffers[0][static_cast<std::size_t>(rank)].call();
      });
      for (const Buffers& buffer : buffers[0]) buffer.expect_bounds_kept();
    }
  }

 private:
  using AllBuffers = std::vector<std::vector<Buffers>>;  // by case and rank

  AllBuffers make_buffers(const std::vector<Case>& cases) const {
    AllBuffers buffers(cases.size());
    for (std::size_t i = 0; i < cases.size(); ++i) {
      for (std::size_t rank = 0; rank < ranks(); ++rank) buffers[i].emplace_back(cases[i], rank);
    }
    return buffers;
  }
};

}  // namespace kolo::test
