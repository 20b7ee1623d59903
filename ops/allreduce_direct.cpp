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
// Whole inputs meet at one rank, so the sum is made in rank order, 16-bit floats in float32 with
// one rounding: the bits do not depend on how the buffer is cut.
//
// Pieces longer than a segment go through the steps segment by segment; the contributions of the
// next segment travel while this one is combined.
//
// Bytes: a rank sends 2 (n-1)/n of the buffer, as much as in a ring, in 2 (n-1) messages per
// segment, with two steps of latency. Scratch: 2 n segments.
// Worlds: any size; meant for few ranks, since all pairs talk at once.
#include <array>
#include <memory>
#include <vector>

#include "ops/algorithms.hpp"
#include "ops/kernels.hpp"
#include "ops/pieces.hpp"

namespace kolo::ops {
namespace {

constexpr int kContributionTag = 0;
constexpr int kResultTag = 1;

class DirectExchange {
 public:
  explicit DirectExchange(const CollectiveCall& call)
      : call_(call),
        communicator_(*call.communicator),
        rank_(communicator_.rank()),
        size_(communicator_.size()),
        segment_(segment_length(call)),
        inputs_(static_cast<std::size_t>(size_)) {
    const std::size_t longest = std::min(segment_, piece_of(call.count, size_, 0).length);
    slot_bytes_ = longest * size_of(call.dtype);
    scratch_ = std::make_unique_for_overwrite<std::byte[]>(2 * static_cast<std::size_t>(size_) *
                                                           slot_bytes_);
  }

  /// The longest piece, which comes first, decides how many segments there are.
  std::size_t segments() const {
    return segment_count(piece_of(call_.count, size_, 0).length, segment_);
  }

  void start_contributions(std::size_t segment) {
    Round& round = rounds_[segment % 2];
    const Range own = range(rank_, segment);
    for (int step = 1; step < size_; ++step) {
      const int peer = (rank_ + step) % size_;  // so that not all send to rank 0 first
      if (own.length > 0) {
        round.receives.push_back(communicator_.receive(
            bytes_of(call_, slot(peer, segment), {0, own.length}), peer, kContributionTag));
      }
      const Range theirs = range(peer, segment);
      if (theirs.length > 0) {
        round.sends.push_back(
            communicator_.send(bytes_of(call_, call_.input, theirs), peer, kContributionTag));
      }
    }
  }

  void combine_own(std::size_t segment) {
    const Range own = range(rank_, segment);
    for (int peer = 0; peer < size_; ++peer) {
      inputs_[static_cast<std::size_t>(peer)] = slot(peer, segment);
    }
    inputs_[static_cast<std::size_t>(rank_)] = bytes_of(call_, call_.input, own).data();
    const std::array<std::byte*, 1> outputs{bytes_of(call_, call_.output, own).data()};
    combine(call_.dtype, call_.reduction, inputs_, outputs, own.length);
  }

  /// Only after the contributions of this segment have left: in place, the results overwrite them.
  void start_results(std::size_t segment) {
    Round& round = rounds_[segment % 2];
    const Range own = range(rank_, segment);
    for (int step = 1; step < size_; ++step) {
      const int peer = (rank_ + step) % size_;
      const Range theirs = range(peer, segment);
      if (theirs.length > 0) {
        round.receives.push_back(
            communicator_.receive(bytes_of(call_, call_.output, theirs), peer, kResultTag));
      }
      if (own.length > 0) {
        round.sends.push_back(communicator_.send(bytes_of(call_, std::as_const(call_.output), own),
                                                 peer, kResultTag));
      }
    }
  }

  /// Ends when all that was started for this segment so far is done.
  Task finish(std::size_t segment) {
    Round& round = rounds_[segment % 2];
    for (Transfer& receive : round.receives) co_await receive;
    for (Transfer& send : round.sends) co_await send;
    round.receives.clear();
    round.sends.clear();
  }

 private:
  struct Round {
    std::vector<Transfer> receives;
    std::vector<Transfer> sends;
  };

  Range range(int rank, std::size_t segment) const {
    return segment_of(piece_of(call_.count, size_, rank), segment_, segment);
  }
  std::byte* slot(int rank, std::size_t segment) {
    const std::size_t index = segment % 2 * static_cast<std::size_t>(size_);
    return scratch_.get() + (index + static_cast<std::size_t>(rank)) * slot_bytes_;
  }

  const CollectiveCall& call_;
  Communicator& communicator_;
  int rank_;
  int size_;
  std::size_t segment_;
  std::size_t slot_bytes_;
  std::unique_ptr<std::byte[]> scratch_;
  std::vector<const std::byte*> inputs_;
  std::array<Round, 2> rounds_;  // of the segment at work and the next one
};

}  // namespace

Task allreduce_direct(CollectiveCall call) {
  DirectExchange exchange(call);
  const std::size_t segments = exchange.segments();
  if (segments > 0) exchange.start_contributions(0);
  for (std::size_t i = 0; i < segments; ++i) {
    co_await exchange.finish(i);
    if (i > 0) co_await exchange.finish(i - 1);  // its results
    if (i + 1 < segments) exchange.start_contributions(i + 1);
    exchange.combine_own(i);
    exchange.start_results(i);
    co_await next_turn();
  }
  if (segments > 0) co_await exchange.finish(segments - 1);
}

}  // namespace kolo::ops
