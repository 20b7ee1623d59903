#pragma once

#include <cstddef>
#include <vector>

#include "contract/algorithm_contract.hpp"

namespace kolo::test {

/// The contract of a collective that only moves bytes. `Buffers` is one rank's memory, made from a
/// printable Case and a rank: call() fills in the input and returns the rank's call, peer_buffer()
/// is the memory that other ranks access, give_up() ends its use, and expect_result() and
/// expect_guards_intact() check it afterwards.
template <class Case, class Buffers>
class MoveContract : public AlgorithmContract {
 protected:
  void check(const std::vector<Case>& cases, const Timing& timing = {}) const {
    AllBuffers buffers = make_buffers(cases);
    run_calls(
        cases.size(), [&](std::size_t i, int rank) { return call_of(buffers[i], rank); },
        [&](std::size_t i, int rank) {
          buffers[i].of_rank[static_cast<std::size_t>(rank)].give_up();
        },
        timing);
    for (std::size_t i = 0; i < cases.size(); ++i) {
      for (std::size_t rank = 0; rank < ranks(); ++rank) {
        SCOPED_TRACE(testing::Message() << "rank " << rank << ", " << cases[i]);
        buffers[i].of_rank[rank].expect_result();
        buffers[i].of_rank[rank].expect_guards_intact();
      }
    }
  }

  void check_timings(const std::vector<Case>& cases) const {
    for (const Timing& timing : other_timings()) {
      SCOPED_TRACE(testing::Message() << timing);
      check(cases, timing);
    }
  }

  /// Tasks that are destroyed at any point must leave no damage.
  void check_abandoned(const Case& item) const {
    for (int polls = 0; polls < 24; ++polls) {
      AllBuffers buffers = make_buffers({item});
      abandon_call(polls, [&](std::size_t, int rank) { return call_of(buffers[0], rank); });
      for (const Buffers& buffer : buffers[0].of_rank) buffer.expect_guards_intact();
    }
  }

 private:
  /// All ranks' memory for one case.
  struct CaseBuffers {
    CaseBuffers(const Case& item, std::size_t ranks) {
      for (std::size_t rank = 0; rank < ranks; ++rank) of_rank.emplace_back(item, rank);
      for (Buffers& buffer : of_rank) peer_buffers.push_back(buffer.peer_buffer());
    }

    std::vector<Buffers> of_rank;
    std::vector<std::byte*> peer_buffers;
  };
  using AllBuffers = std::vector<CaseBuffers>;

  CollectiveCall call_of(CaseBuffers& buffers, int rank) const {
    CollectiveCall call = buffers.of_rank[static_cast<std::size_t>(rank)].call();
    if (has_peer_buffers()) call.peer_buffers = buffers.peer_buffers;
    return call;
  }

  AllBuffers make_buffers(std::vector<Case> cases) const {
    AllBuffers buffers;
    for (Case& item : cases) {
      if (has_peer_buffers()) item.move.in_place = true;
      buffers.emplace_back(item, ranks());
    }
    return buffers;
  }
};

}  // namespace kolo::test
