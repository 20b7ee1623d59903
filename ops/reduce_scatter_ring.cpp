// Reduce-scatter over a ring: every rank sends to its right neighbour only and receives from its
// left.
//
// The partial sum of each piece moves around the ring, and every rank adds its own part; the piece
// of rank p starts at its right neighbour and ends at p. At step s = 0 … n-2 rank r sends piece
// r-s-1 and receives piece r-s-2 (mod n), which it sends in the next step.
//
//   n = 3           rank 0        rank 1        rank 2
//   step 0       sends a2 ->   sends b0 ->   sends c1 ->  (to rank 0)
//   step 1       c1+a1 ->      a2+b2 ->      b0+c0 ->
//   now whole    b0+c0+a0      c1+a1+b1      a2+b2+c2
//
// Neither the input nor the output of one piece can hold the partial sums in flight, so their
// number is limited: pieces are sent in blocks of at most 4 segments, first block 0 of all pieces,
// then block 1. A segment is received into a slot, combined there and forwarded from there. The
// last step of a block forwards nothing; the next block starts instead, so that links never idle.
//
//   arrivals   0 1 2 3 4 5 6 7 8 ...   blocks of 4: a slot is reused 8 arrivals later. Its segment
//   slots      0 1 2 3 4 5 6 7 0 ...   has left by then: the right neighbour receives it as its
//                                      arrival 4 places later, and does not wait for this rank
//
// Counts may differ and may be 0: each piece has as many segments as the longest, and empty ones
// are not sent.
//
// The order of the sum depends on the piece; it is the same in every run. 16-bit floats are rounded
// at every step. The prescale is applied by each rank to its own part and the postscale with the
// last addition: for a mean of 16-bit floats the caller prescales by 1/n, which keeps every partial
// sum finite. In place, that addition overwrites the rank's own piece.
//
// Bytes: a rank sends all pieces but its own, the minimum, in n-1 steps of latency for each block.
// Scratch: 8 segments, and one for scaled inputs. Worlds: any size; best for long buffers on many
// ranks.
#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "ops/algorithms.hpp"
#include "ops/kernels/kernels.hpp"
#include "ops/kernels/pieces.hpp"
#include "ops/steps/messages.hpp"

namespace kolo::ops {
namespace {

constexpr std::size_t kLongestBlock = 4;

class Ring {
 public:
  explicit Ring(const CollectiveCall& call)
      : call_(call),
        communicator_(*call.communicator),
        rank_(communicator_.rank()),
        size_(communicator_.size()),
        segment_(segment_length(call)),
        pieces_(ranges_of(call.counts)),
        block_(std::clamp<std::size_t>(segment_count(longest_of(pieces_), segment_), 1,
                                       kLongestBlock)),
        blocks_(segment_count(longest_of(pieces_), block_ * segment_)),
        slot_bytes_(std::min(longest_of(pieces_), segment_) * size_of(call.dtype)),
        slots_(2 * block_ * slot_bytes_),
        scaled_(std::make_unique_for_overwrite<std::byte[]>(slot_bytes_)) {}

  /// The number of arrivals: over all blocks, the steps of a block, and the segments of a step.
  std::size_t arrivals() const { return blocks_ * steps() * block_; }

  /// The number of receives that may be in flight.
  std::size_t lookahead() const { return block_; }

  /// Sends the first block, as if forwarded from the slots of a block before the first arrival.
  void start() {
    slots_.set_in_use(true);
    if (blocks_ == 0) return;
    for (std::size_t i = 0; i < block_; ++i) send(block_ + i, own_part(0, i));
  }

  /// Starts to receive arrival `index`, once the partial sum in its slot has left.
  Task start_receive(std::size_t index) {
    const std::size_t slot = slot_index(index);
    co_await sends_[slot];
    const std::span<std::byte> target = slot_of(index);
    if (target.empty()) co_return;
    receives_[slot] = communicator_.receive(target, (rank_ + size_ - 1) % size_, kTag);
  }

  Transfer& arrival(std::size_t index) { return receives_[slot_index(index)]; }

  /// Adds this rank's part and forwards the sum. At the last step the sum stays here, and the next
  /// block's first part is sent.
  void pass_on(std::size_t index) {
    const std::size_t next_block = index / (steps() * block_) + 1;
    const bool is_whole = step_of(index) + 1 == steps();
    add_own(index, is_whole);
    if (!is_whole) {
      send(slot_index(index), slot_of(index));
    } else if (next_block < blocks_) {
      send(slot_index(index), own_part(next_block, index % block_));
    }
  }

  Task finish_sends() {
    for (Transfer& send : sends_) co_await send;
    slots_.set_in_use(false);
  }

 private:
  std::size_t steps() const { return static_cast<std::size_t>(size_ - 1); }
  std::size_t slot_index(std::size_t index) const { return index % (2 * block_); }
  std::size_t step_of(std::size_t index) const { return index / block_ % steps(); }

  /// Segment `which` of the piece that is `places` ranks to the left, in the input.
  Range part_of(int places, std::size_t which) const {
    const auto piece = static_cast<std::size_t>((rank_ + 2 * size_ - places) % size_);
    return segment_of(pieces_[piece], segment_, which);
  }
  Range range_of(std::size_t index) const {
    const std::size_t block = index / (steps() * block_);
    return part_of(static_cast<int>(step_of(index)) + 2, block * block_ + index % block_);
  }
  std::span<const std::byte> own_part(std::size_t block, std::size_t which) const {
    return bytes_of(call_, call_.input, part_of(1, block * block_ + which));
  }
  std::span<std::byte> slot_of(std::size_t index) {
    return bytes_of(call_, slots_.data() + slot_index(index) * slot_bytes_,
                    {0, range_of(index).length});
  }

  void send(std::size_t slot, std::span<const std::byte> data) {
    if (!data.empty()) sends_[slot] = communicator_.send(data, (rank_ + 1) % size_, kTag);
  }

  /// In a block's first step an unscaled input arrives; later, sums of scaled inputs do.
  void add_own(std::size_t index, bool is_whole) {
    const Range range = range_of(index);
    const double prescale = call_.reduction.prescale;
    const double postscale = is_whole ? call_.reduction.postscale : 1.0;
    const bool is_first = step_of(index) == 0;
    const std::byte* own = bytes_of(call_, call_.input, range).data();
    if (!is_first && prescale != 1.0) {
      const std::array<std::byte*, 1> scaled{scaled_.get()};
      combine(call_.dtype, with_scales(call_.reduction, prescale, 1.0), {&own, 1}, scaled,
              range.length);
      own = scaled_.get();
    }
    const std::array<const std::byte*, 2> inputs{slot_of(index).data(), own};
    const std::array<std::byte*, 1> outputs{is_whole ? place_of(range) : slot_of(index).data()};
    combine(call_.dtype, with_scales(call_.reduction, is_first ? prescale : 1.0, postscale), inputs,
            outputs, range.length);
  }

  /// The place in the output of a part of this rank's piece.
  std::byte* place_of(Range range) const {
    const std::size_t begin = range.begin - pieces_[static_cast<std::size_t>(rank_)].begin;
    return bytes_of(call_, call_.output, {begin, range.length}).data();
  }

  const CollectiveCall& call_;
  Communicator& communicator_;
  int rank_;
  int size_;
  std::size_t segment_;
  std::vector<Range> pieces_;
  std::size_t block_;  // segments in a block
  std::size_t blocks_;
  std::size_t slot_bytes_;
  TransferScratch slots_;
  std::unique_ptr<std::byte[]> scaled_;
  std::array<Transfer, 2 * kLongestBlock> receives_;
  std::array<Transfer, 2 * kLongestBlock> sends_;
};

}  // namespace

Task reduce_scatter_ring(CollectiveCall call) {
  if (call.communicator->size() == 1) {
    co_await reduce_scatter_direct(call);  // no neighbours
    co_return;
  }
  Ring ring(call);
  const std::size_t arrivals = ring.arrivals();
  const std::size_t ahead = ring.lookahead();
  ring.start();
  for (std::size_t i = 0; i < std::min(ahead, arrivals); ++i) co_await ring.start_receive(i);
  for (std::size_t i = 0; i < arrivals; ++i) {
    co_await ring.arrival(i);
    ring.pass_on(i);
    if (i + ahead < arrivals) co_await ring.start_receive(i + ahead);
    co_await yield();
  }
  co_await ring.finish_sends();
}

}  // namespace kolo::ops
