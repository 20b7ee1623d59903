// Broadcast through shared memory: the root writes, the others read.
//
//   1 copy in    the root copies a chunk into its slot of the window
//   2 copy out   every other rank copies it from there
//
//   root       [ chunk 4 ][ chunk 1 ][ chunk 2 ][ chunk 3 ]      slots, used in turn
//                   |          |          |          |
//   others      wait for it   each reads at its own pace
//
// A rank's stage counts the chunks that it has finished: a reader waits only for the root's stage,
// and the root waits for all readers only before it reuses a slot, four chunks later.
//
// Bytes: every rank but the root reads the buffer from the root's slots.
// Worlds: any size, on one node, any root.
#include <cstring>

#include "ops/algorithms.hpp"
#include "ops/kernels/pieces.hpp"
#include "ops/steps/windows.hpp"

namespace kolo::ops {
namespace {

constexpr std::size_t kBroadcastSlots = 4;

}  // namespace

Task broadcast_window(CollectiveCall call) {
  SharedWindow& window = *call.window;
  const WindowSlots slots(window, call.segment_bytes, {.count = kBroadcastSlots}, "broadcast");
  const std::size_t chunk_length = slots.bytes() / size_of(call.dtype);
  const bool is_root = window.rank() == call.root;
  const std::uint64_t start = window.stage();

  for (std::size_t chunk = 0; chunk < segment_count(call.count, chunk_length); ++chunk) {
    const auto data = bytes_of(call, call.output, segment_of({0, call.count}, chunk_length, chunk));
    std::byte* slot = slots.of(call.root, chunk);
    if (is_root) {
      // The last chunk read from this slot, or what an earlier operation left.
      co_await window.all_reached(start +
                                  (chunk < kBroadcastSlots ? 0 : chunk - kBroadcastSlots + 1));
      std::memcpy(slot, data.data(), data.size());
    } else {
      co_await window.reached(call.root, start + chunk + 1);
      std::memcpy(data.data(), slot, data.size());
      window.count_moved(data.size());
    }
    window.enter_stage();
    co_await yield();
  }
}

}  // namespace kolo::ops
