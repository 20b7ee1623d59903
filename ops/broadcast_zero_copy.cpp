// Broadcast from a buffer that all ranks of a node can see, directly into theirs.
//
//   root       enters the stage: its buffer holds the data      waits for all ranks, returns
//                        |                                           ^       ^
//   others     wait for the root, read its buffer,  enter the stage -+-------+   return
//
// No rank reads the memory of a rank other than the root, so only the root waits at the end.
//
// Bytes: every rank but the root reads the buffer from the root's memory.
// Worlds: any size, on one node, any root, with `peer_buffers`.
#include "ops/algorithms.hpp"
#include "ops/kernels/pieces.hpp"
#include "ops/steps/windows.hpp"

namespace kolo::ops {

Task broadcast_zero_copy(CollectiveCall call) {
  if (call.count == 0) co_return;
  SharedWindow& window = *call.window;
  if (window.rank() == call.root) {
    co_await window.all_reached(window.enter_stage());
    co_return;
  }
  const std::byte* const source = call.peer_buffers[static_cast<std::size_t>(call.root)];
  const std::size_t length = segment_length(call);

  co_await window.reached(call.root, window.stage() + 1);
  for (std::size_t i = 0; i < segment_count(call.count, length); ++i) {
    const Range range = segment_of({0, call.count}, length, i);
    copy_from_peer(window, bytes_of(call, source, range).data(),
                   bytes_of(call, call.output, range));
    co_await yield();
  }
  window.enter_stage();
}

}  // namespace kolo::ops
