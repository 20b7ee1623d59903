// All-reduce through shared memory for small buffers, where waiting costs more than reading.
//
//   1 copy in   every rank copies its input into its slot of the window
//   2 combine   every rank combines all slots in rank order for itself
//
// One wait instead of the two that `allreduce_window` needs, for n-1 times the reading. Longer
// buffers go chunk by chunk through two slots: when all ranks have entered the stage of chunk i+1,
// they have combined chunk i, so its slot is free for chunk i+2.
//
// Bytes: a rank reads n-1 times the buffer from other ranks' slots.
// Worlds: any size, on one node.
#include <array>
#include <cstring>
#include <vector>

#include "ops/algorithms.hpp"
#include "ops/kernels/kernels.hpp"
#include "ops/kernels/pieces.hpp"
#include "ops/steps/windows.hpp"

namespace kolo::ops {
namespace {

constexpr std::size_t kSmallSlots = 2;

}  // namespace

Task allreduce_window_small(CollectiveCall call) {
  SharedWindow& window = *call.window;
  const WindowSlots slots(window, call.segment_bytes, {.count = kSmallSlots}, "small all-reduce");
  const std::size_t chunk_length = slots.bytes() / size_of(call.dtype);
  const std::size_t chunks = segment_count(call.count, chunk_length);
  if (chunks == 0) co_return;
  std::vector<const std::byte*> inputs(static_cast<std::size_t>(window.size()));

  co_await window.all_reached(window.stage());
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
    const Range range = segment_of({0, call.count}, chunk_length, chunk);
    const auto source = bytes_of(call, call.input, range);
    std::memcpy(slots.of(window.rank(), chunk), source.data(), source.size());
    co_await window.all_reached(window.enter_stage());

    for (int peer = 0; peer < window.size(); ++peer) {
      inputs[static_cast<std::size_t>(peer)] = slots.of(peer, chunk);
    }
    const std::array<std::byte*, 1> outputs{bytes_of(call, call.output, range).data()};
    combine(call.dtype, call.reduction, inputs, outputs, range.length);
    window.count_moved(static_cast<std::size_t>(window.size() - 1) * source.size());
    if (chunk + 1 < chunks) co_await yield();
  }
  window.enter_stage();
}

}  // namespace kolo::ops
