// All-gather of buffers that all ranks of a node can see: every rank's piece is in its place.
//
//   1 a rank enters a stage: its piece is there
//   2 it reads each other rank's piece, as soon as that one has entered the stage
//   3 wait until all ranks have finished step 2
//
//   outputs    rank 0   rank 1   rank 2
//   piece 0    [  A  ]->[     ]->[     ]      each rank writes only its own output
//   piece 1    [     ]<-[  B  ]->[     ]
//   piece 2    [     ]<-[     ]<-[  C  ]
//
// Bytes: a rank reads all pieces but its own from other ranks' memory, and writes none there.
// Worlds: any size, on one node, with `peer_buffers`.
#include <vector>

#include "ops/algorithms.hpp"
#include "ops/kernels/pieces.hpp"
#include "ops/steps/windows.hpp"

namespace kolo::ops {

Task allgather_zero_copy(CollectiveCall call) {
  SharedWindow& window = *call.window;
  const std::vector<Range> pieces = ranges_of(call.counts);
  if (longest_of(pieces) == 0) co_return;
  const std::size_t length = segment_length(call);

  const std::uint64_t stage = window.enter_stage();
  for (int step = 1; step < window.size(); ++step) {
    const int peer = (window.rank() + step) % window.size();  // ranks start with different peers
    const auto index = static_cast<std::size_t>(peer);
    const std::byte* const source = call.peer_buffers[index];
    co_await window.reached(peer, stage);
    for (std::size_t i = 0; i < segment_count(pieces[index].length, length); ++i) {
      const Range range = segment_of(pieces[index], length, i);
      copy_from_peer(window, bytes_of(call, source, range).data(),
                     bytes_of(call, call.output, range));
      co_await yield();
    }
  }
  co_await window.all_reached(window.enter_stage());
}

}  // namespace kolo::ops
