// All-gather through shared memory.
//
//   1 copy in    every rank copies a chunk of its block into its slot of the window, and to its
//                place in its output
//   2 copy out   every rank copies the others' chunks from their slots
//
//   slots      rank 0      rank 1      rank 2
//              [  A  ]     [  B  ]     [  C  ]
//   outputs     A B C       A B C       A B C      each reads the two slots that are not its own
//
// The steps of consecutive chunks overlap: in round i a rank copies chunk i in, enters a stage, and
// copies chunk i-1 out while the others get there. Once all have entered the stage of round i+1,
// that is before round i+2 starts, chunk i-1 is out everywhere: three slots suffice. Blocks may
// differ in length and may be empty; a rank whose block has ended still copies the others'.
//
// Bytes: a rank reads all blocks but its own from other ranks' slots, and writes none there.
// Worlds: any size, on one node.
#include <cstring>
#include <vector>

#include "ops/algorithms.hpp"
#include "ops/steps/piecewise.hpp"
#include "ops/steps/windows.hpp"

namespace kolo::ops {
namespace {

constexpr std::size_t kAllgatherSlots = 3;

class Gathering {
 public:
  Gathering(const CollectiveCall& call, std::span<const Range> pieces)
      : call_(call),
        window_(*call.window),
        slots_(window_, call.segment_bytes, {.count = kAllgatherSlots}, "all-gather"),
        chunk_length_(slots_.bytes() / size_of(call.dtype)),
        pieces_(pieces) {}

  std::size_t chunks() const { return segment_count(longest_of(pieces_), chunk_length_); }

  void copy_in(std::size_t chunk) {
    const auto target = part(window_.rank(), chunk);
    if (target.empty()) return;
    const std::byte* source = call_.input + chunk * chunk_length_ * size_of(call_.dtype);
    std::memcpy(slots_.of(window_.rank(), chunk), source, target.size());
    if (source != target.data()) std::memcpy(target.data(), source, target.size());
  }

  void copy_out(std::size_t chunk) {
    for (int step = 1; step < window_.size(); ++step) {
      const int peer = (window_.rank() + step) % window_.size();  // ranks start with different ones
      const auto target = part(peer, chunk);
      if (target.empty()) continue;
      std::memcpy(target.data(), slots_.of(peer, chunk), target.size());
      window_.count_moved(target.size());
    }
  }

 private:
  std::span<std::byte> part(int rank, std::size_t chunk) const {
    const Range piece = pieces_[static_cast<std::size_t>(rank)];
    return bytes_of(call_, call_.output, segment_of(piece, chunk_length_, chunk));
  }

  const CollectiveCall& call_;
  SharedWindow& window_;
  WindowSlots slots_;
  std::size_t chunk_length_;
  std::span<const Range> pieces_;
};

}  // namespace

Task allgather_pieces(CollectiveCall call, std::span<const Range> pieces) {
  SharedWindow& window = *call.window;
  Gathering gathering(call, pieces);
  const std::size_t chunks = gathering.chunks();
  if (chunks == 0) co_return;

  co_await window.all_reached(window.stage());
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
    gathering.copy_in(chunk);
    const std::uint64_t stage = window.enter_stage();
    if (chunk > 0) gathering.copy_out(chunk - 1);
    co_await yield();
    co_await window.all_reached(stage);
  }
  gathering.copy_out(chunks - 1);
  window.enter_stage();
}

Task allgather_window(CollectiveCall call) {
  const std::vector<Range> blocks = ranges_of(call.counts);
  co_await allgather_pieces(call, blocks);
}

}  // namespace kolo::ops
