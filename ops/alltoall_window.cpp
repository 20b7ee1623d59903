// All-to-all through shared memory.
//
//   1 copy in    every rank copies its chunk, a part of the block for each rank, into its slot of
//                the window, and its own part to its output
//   2 copy out   every rank copies the parts for it out of all other slots
//
//   slots       rank 0     rank 1     rank 2
//              [ --- ]    [ 1>0 ]    [ 2>0 ]  --> output of rank 0
//              [ 0>1 ]    [ --- ]    [ 2>1 ]  --> output of rank 1
//              [ 0>2 ]    [ 1>2 ]    [ --- ]  --> output of rank 2
//
// All blocks are cut into the same number of parts. That number, and the place of each receiver's
// parts in a slot, depend on the sender's blocks, which only the sender knows: it writes both in
// front of its slots along with the first chunk, which costs no additional step.
//
// The steps of consecutive chunks overlap: in round i a rank copies chunk i in, enters a stage, and
// copies chunk i-1 out while the others get there. Once all have entered the stage of round i+1,
// that is before round i+2 starts, chunk i-1 is out everywhere: three slots suffice.
//
// Bytes: a rank reads the blocks for it from other ranks' slots (and n+1 numbers from each), and
// writes none there. Worlds: any size, on one node.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "ops/algorithms.hpp"
#include "ops/steps/reduction_plan.hpp"
#include "ops/steps/windows.hpp"

namespace kolo::ops {
namespace {

constexpr std::size_t kAlltoallSlots = 3;

class BlockExchange {
 public:
  explicit BlockExchange(const CollectiveCall& call)
      : call_(call),
        window_(*call.window),
        rank_(window_.rank()),
        slots_(window_, call.segment_bytes,
               {.count = kAlltoallSlots,
                .min_bytes = Shares::min_slot_bytes(ranks()),
                .header_bytes = header_bytes()},
               "all-to-all"),
        shares_(ranges_of(call.send_counts), size_of(call.dtype), slots_.bytes()),
        received_(ranges_of(call.receive_counts)),
        chunks_(ranks()),
        places_(ranks()) {}

  /// Tells the other ranks the number of chunks, and where each rank's parts are in a slot.
  void write_header() {
    std::uint64_t* header = header_of(rank_);
    header[0] = shares_.chunks();
    for (int peer = 0; peer < window_.size(); ++peer) header[1 + peer] = shares_.place(peer);
  }

  void read_headers() {
    for (int peer = 0; peer < window_.size(); ++peer) {
      const std::uint64_t* header = header_of(peer);
      chunks_[static_cast<std::size_t>(peer)] = header[0];
      places_[static_cast<std::size_t>(peer)] = header[1 + rank_];
    }
  }

  /// The number of chunks of the rank with the most to send.
  std::size_t rounds() const { return *std::max_element(chunks_.begin(), chunks_.end()); }

  void copy_in(std::size_t chunk) {
    if (chunk >= shares_.chunks()) return;
    for (int peer = 0; peer < window_.size(); ++peer) {
      const auto source = bytes_of(call_, call_.input, shares_.part(peer, chunk));
      std::byte* target = slots_.of(rank_, chunk) + shares_.place(peer);
      if (peer == rank_) target = received_part(rank_, shares_.chunks(), chunk).data();
      if (!source.empty()) std::memcpy(target, source.data(), source.size());
    }
  }

  void copy_out(std::size_t chunk) {
    for (int step = 1; step < window_.size(); ++step) {
      const int peer = (rank_ + step) % window_.size();  // ranks start with different peers
      const auto index = static_cast<std::size_t>(peer);
      if (chunk >= chunks_[index]) continue;
      const auto target = received_part(peer, chunks_[index], chunk);
      if (target.empty()) continue;
      std::memcpy(target.data(), slots_.of(peer, chunk) + places_[index], target.size());
      window_.count_moved(target.size());
    }
  }

 private:
  std::size_t ranks() const { return static_cast<std::size_t>(window_.size()); }
  std::size_t header_bytes() const {
    return segment_count((1 + ranks()) * sizeof(std::uint64_t), Shares::kLineBytes) *
           Shares::kLineBytes;
  }
  std::uint64_t* header_of(int rank) {
    return reinterpret_cast<std::uint64_t*>(window_.segment(rank).data());
  }
  /// The place in the output of the part that `sender` has for this rank in a chunk.
  std::span<std::byte> received_part(int sender, std::size_t chunks, std::size_t chunk) const {
    const Range block = received_[static_cast<std::size_t>(sender)];
    const Range part = Shares::part_of(block, chunks, chunk, size_of(call_.dtype));
    return bytes_of(call_, call_.output, part);
  }

  const CollectiveCall& call_;
  SharedWindow& window_;
  int rank_;
  WindowSlots slots_;
  Shares shares_;                    // of what this rank sends
  std::vector<Range> received_;      // by sender
  std::vector<std::size_t> chunks_;  // by sender
  std::vector<std::size_t> places_;  // by sender: of the parts for this rank
};

}  // namespace

Task alltoall_window(CollectiveCall call) {
  SharedWindow& window = *call.window;
  BlockExchange exchange(call);
  co_await window.all_reached(window.stage());
  exchange.write_header();
  std::size_t rounds = 1;  // until the others' headers are known
  for (std::size_t round = 0; round < rounds; ++round) {
    exchange.copy_in(round);
    const std::uint64_t stage = window.enter_stage();
    if (round > 0) exchange.copy_out(round - 1);
    co_await yield();
    co_await window.all_reached(stage);
    if (round == 0) {
      exchange.read_headers();
      rounds = exchange.rounds();
    }
  }
  if (rounds > 0) exchange.copy_out(rounds - 1);
  window.enter_stage();
}

}  // namespace kolo::ops
