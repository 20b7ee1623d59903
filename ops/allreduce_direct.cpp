// All-reduce by direct exchange: every rank is responsible for one piece of the buffer.
//
//   1 contribute  every rank sends piece p of its input to rank p, for all p
//   2 combine     rank p combines piece p from all ranks, in rank order
//   3 gather      rank p sends the result to all ranks
//
//        rank 0          rank 1          rank 2
//     a0  a1  a2      b0  b1  b2      c0  c1  c2       inputs, cut into pieces
//     a0 b0 c0        a1 b1 c1        a2 b2 c2         after step 1: each has all of its piece
//     s0 ------------- s1 ------------- s2             after step 2, sent to everyone in step 3
//
// Steps 1 and 2 are those of a direct reduce-scatter: see contributions.hpp. One rank combines all
// inputs of an element, so the bits do not depend on how the buffer is cut.
//
// Pieces longer than a segment are processed segment by segment; the contributions of the next
// segment are sent while this one is combined.
//
// Bytes: a rank sends 2 (n-1)/n of the buffer, as much as in a ring, in 2 (n-1) messages per
// segment, with two steps of latency. Scratch: 2 n segments.
// Worlds: any size; meant for few ranks, since all pairs communicate at once.
#include <array>
#include <utility>
#include <vector>

#include "ops/algorithms.hpp"
#include "ops/kernels/pieces.hpp"
#include "ops/steps/contributions.hpp"
#include "ops/steps/messages.hpp"

namespace kolo::ops {
namespace {

std::vector<Range> cut(const CollectiveCall& call) {
  const int size = call.communicator->size();
  std::vector<Range> pieces;
  for (int rank = 0; rank < size; ++rank) pieces.push_back(piece_of(call.count, size, rank));
  return pieces;
}

/// Step 3.
class Results {
 public:
  Results(const CollectiveCall& call, const Contributions& contributions)
      : call_(call), communicator_(*call.communicator), contributions_(contributions) {}

  std::byte* own(std::size_t segment) const {
    const Range range = contributions_.range(communicator_.rank(), segment);
    return bytes_of(call_, call_.output, range).data();
  }

  /// Only after the contributions of this segment have left: in place, the results overwrite them.
  void start(std::size_t segment) {
    const int rank = communicator_.rank();
    const int size = communicator_.size();
    const Range own = contributions_.range(rank, segment);
    std::vector<Transfer>& transfers = transfers_[segment % 2];
    for (int step = 1; step < size; ++step) {
      const int peer = (rank + step) % size;
      const Range theirs = contributions_.range(peer, segment);
      if (theirs.length > 0) {
        const auto target = bytes_of(call_, call_.output, theirs);
        transfers.push_back(communicator_.receive(target, peer, kResultTag));
      }
      if (own.length > 0) {
        const auto result = bytes_of(call_, std::as_const(call_.output), own);
        transfers.push_back(communicator_.send(result, peer, kResultTag));
      }
    }
  }

  Task finish(std::size_t segment) {
    std::vector<Transfer>& transfers = transfers_[segment % 2];
    for (Transfer& transfer : transfers) co_await transfer;
    transfers.clear();
  }

 private:
  const CollectiveCall& call_;
  Communicator& communicator_;
  const Contributions& contributions_;
  std::array<std::vector<Transfer>, 2> transfers_;  // of even and odd segments
};

}  // namespace

Task allreduce_direct(CollectiveCall call) {
  Contributions contributions(call, cut(call), kContributionTag);
  Results results(call, contributions);
  const std::size_t segments = contributions.segments();
  if (segments > 0) contributions.start(0);
  for (std::size_t i = 0; i < segments; ++i) {
    co_await contributions.finish(i);
    if (i > 0) co_await results.finish(i - 1);
    if (i + 1 < segments) contributions.start(i + 1);
    contributions.combine(i, results.own(i));
    results.start(i);
    co_await yield();
  }
  if (segments > 0) co_await results.finish(segments - 1);
}

}  // namespace kolo::ops
