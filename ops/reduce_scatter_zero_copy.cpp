// Reduce-scatter of buffers that all ranks of a node can see, without a copy.
//
//   1 wait until all ranks have started: their buffers hold their inputs
//   2 rank r reads piece r of all inputs, combines in rank order, writes its output
//   3 wait until all ranks have finished step 2
//
//   inputs      rank 0   rank 1   rank 2
//   piece 0    [  x0  ] [  x0  ] [  x0  ] --> output of rank 0
//   piece 1    [  x1  ] [  x1  ] [  x1  ] --> output of rank 1
//   piece 2    [  x2  ] [  x2  ] [  x2  ] --> output of rank 2
//
// Only rank r reads piece r of the inputs, so its output may be piece r of its own input.
//
// Bytes: a rank reads n-1 times its piece from other ranks' memory, and writes none there.
// Worlds: any size, on one node, with `peer_buffers`. The result does not depend on where pieces
// and segments begin.
#include <array>
#include <vector>

#include "ops/algorithms.hpp"
#include "ops/kernels/kernels.hpp"
#include "ops/kernels/pieces.hpp"

namespace kolo::ops {

Task reduce_scatter_zero_copy(CollectiveCall call) {
  SharedWindow& window = *call.window;
  const std::vector<Range> pieces = ranges_of(call.counts);
  if (longest_of(pieces) == 0) co_return;
  const Range own = pieces[static_cast<std::size_t>(window.rank())];
  const std::size_t peers = static_cast<std::size_t>(window.size() - 1);
  const std::size_t element = size_of(call.dtype);
  const std::size_t length = segment_length(call);
  std::vector<const std::byte*> inputs(call.peer_buffers.size());

  co_await window.all_reached(window.enter_stage());
  for (std::size_t i = 0; i < segment_count(own.length, length); ++i) {
    const Range range = segment_of(own, length, i);
    for (std::size_t peer = 0; peer < inputs.size(); ++peer) {
      inputs[peer] = call.peer_buffers[peer] + range.begin * element;
    }
    const std::array<std::byte*, 1> outputs{call.output + (range.begin - own.begin) * element};
    combine(call.dtype, call.reduction, inputs, outputs, range.length);
    window.count_moved(peers * range.length * element);
    co_await yield();
  }
  co_await window.all_reached(window.enter_stage());
}

}  // namespace kolo::ops
