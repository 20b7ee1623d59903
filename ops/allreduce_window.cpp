// All-reduce through shared memory, for buffers that lie anywhere: staged in chunks.
//
// A chunk passes through three steps, each of which touches other ranks' memory only after all
// ranks have finished the step before:
//
//   1 copy in    every rank copies its chunk into its slot of the window, but for its own share
//   2 combine    rank r combines share r of the chunk, straight from all slots in rank order (its
//                own part from its input), and puts the result into share r of its slot
//   3 copy out   every rank copies the other shares' results out of the slots they were made in
//
//   slots       rank 0   rank 1   rank 2
//   share 0    [=====]<--[ x1  ]  [ x2  ]      rank 0 reads x1, x2, writes x0+x1+x2
//   share 1    [ x0  ]-->[=====]<-[ x2  ]
//   share 2    [ x0  ]   [ x1  ]->[=====]
//
// The steps of consecutive chunks overlap, so that a chunk costs one wait for the slowest rank. In
// round i a rank copies chunk i in, combines its share of chunk i-1, enters a stage, and copies
// chunk i-2 out while the others get there. Chunk i-2 is out everywhere one round later than it is
// here, that is before round i+2 starts: four slots, used in turn, are enough.
//
// Bytes: a rank reads 2 (n-1)/n of the buffer from other ranks' slots, and writes none there.
// Worlds: any size, on one node. The result does not depend on where chunks and shares begin.
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "kolo/error.hpp"
#include "ops/algorithms.hpp"
#include "ops/kernels.hpp"
#include "ops/pieces.hpp"

namespace kolo::ops {
namespace {

constexpr std::size_t kSlots = 4;
constexpr std::size_t kLineBytes = 64;  // shares begin at cache lines, which then have one writer

class Staging {
 public:
  explicit Staging(const CollectiveCall& call)
      : call_(call),
        window_(*call.window),
        rank_(window_.rank()),
        size_(window_.size()),
        element_(size_of(call.dtype)),
        inputs_(static_cast<std::size_t>(size_)) {
    const std::size_t slot = window_.segment(rank_).size() / kSlots / kLineBytes * kLineBytes;
    slot_bytes_ = std::min(call.segment_bytes, slot);
    if (slot_bytes_ == 0) {
      throw InvalidArgument("all-reduce through the window: a segment of " +
                            std::to_string(window_.segment(rank_).size()) +
                            " bytes is too small, it must have 256 at least");
    }
  }

  std::size_t chunk_count() const { return segment_count(call_.count, slot_bytes_ / element_); }

  void copy_in(std::size_t chunk) {
    const Range own = share(chunk, rank_);
    const std::size_t all = length(chunk);
    const std::size_t behind = own.begin + own.length;
    std::byte* slot = slot_of(rank_, chunk);
    const std::byte* input = call_.input + offset(chunk);
    copy(slot, input, own.begin);
    copy(slot + behind * element_, input + behind * element_, all - behind);
  }

  void combine_share(std::size_t chunk) {
    const Range own = share(chunk, rank_);
    const std::size_t begin = own.begin * element_;
    for (int peer = 0; peer < size_; ++peer) {
      inputs_[static_cast<std::size_t>(peer)] = slot_of(peer, chunk) + begin;
    }
    inputs_[static_cast<std::size_t>(rank_)] = call_.input + offset(chunk) + begin;
    const std::array<std::byte*, 2> outputs{slot_of(rank_, chunk) + begin,
                                            call_.output + offset(chunk) + begin};
    combine(call_.dtype, call_.reduction, inputs_, outputs, own.length);
    window_.count_moved(static_cast<std::size_t>(size_ - 1) * own.length * element_);
  }

  void copy_out(std::size_t chunk) {
    for (int step = 1; step < size_; ++step) {
      const int peer = (rank_ + step) % size_;  // each starts with another peer's memory
      const Range theirs = share(chunk, peer);
      const std::size_t begin = theirs.begin * element_;
      copy(call_.output + offset(chunk) + begin, slot_of(peer, chunk) + begin, theirs.length);
      window_.count_moved(theirs.length * element_);
    }
  }

 private:
  std::size_t offset(std::size_t chunk) const { return chunk * slot_bytes_; }
  std::size_t length(std::size_t chunk) const {
    return segment_of({0, call_.count}, slot_bytes_ / element_, chunk).length;
  }
  Range share(std::size_t chunk, int rank) const {
    return piece_of(length(chunk), size_, rank, kLineBytes / element_);
  }
  std::byte* slot_of(int rank, std::size_t chunk) {
    return window_.segment(rank).data() + chunk % kSlots * slot_bytes_;
  }
  void copy(std::byte* to, const std::byte* from, std::size_t count) const {
    if (count > 0) std::memcpy(to, from, count * element_);
  }

  const CollectiveCall& call_;
  SharedWindow& window_;
  int rank_;
  int size_;
  std::size_t element_;
  std::size_t slot_bytes_;
  std::vector<const std::byte*> inputs_;
};

}  // namespace

Task allreduce_window(CollectiveCall call) {
  SharedWindow& window = *call.window;
  Staging staging(call);
  const std::size_t chunks = staging.chunk_count();
  if (chunks == 0) co_return;

  co_await window.all_reached(window.stage());
  for (std::size_t round = 0; round <= chunks; ++round) {
    if (round < chunks) staging.copy_in(round);
    if (round >= 1) staging.combine_share(round - 1);
    const std::uint64_t stage = window.enter_stage();
    if (round >= 2) staging.copy_out(round - 2);
    co_await next_turn();
    co_await window.all_reached(stage);
  }
  staging.copy_out(chunks - 1);
  window.enter_stage();
}

}  // namespace kolo::ops
