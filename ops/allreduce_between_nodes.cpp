// All-reduce over several nodes that compresses the messages between nodes, but nothing inside a
// node.
//
// The buffer is cut into a piece for each place that all nodes have (steps/nodes.hpp); peers are
// the ranks with the same place in the other nodes.
//
//   1 reduce-scatter  inside the node: the rank at place p combines piece p of its node's inputs
//   2 all-reduce      among peers: the nodes' sums of piece p, encoded by a codec, or converted to
//                     the type of a compressor and back
//   3 all-gather      inside the node: all pieces
//
//              node 0                        node 1
//           rank 0   rank 1   rank 4      rank 2   rank 3
//           a0 a1    b0 b1    e0 e1       c0 c1    d0 d1     inputs, in pieces
//   1       a0+b0+e0 a1+b1+e1 -           c0+d0    c1+d1
//   2         s0 <---- s1 --------------->  s0 <---> s1      encoded
//   3       s0 s1    s0 s1    s0 s1       s0 s1    s0 s1
//
// Inside a node ranks use its window, or messages if there is none. A rank's residual is that of
// its piece. The scales are applied in step 2, so that residuals are in the unit of the inputs
// (with a compressor, the prescale in step 1). All ranks receive the same bits.
//
// Bytes, of N nodes whose smallest has L ranks: a rank sends what allreduce_coded, or an all-reduce
// in the compressor's type, sends over N ranks of a piece of 1/L. Inside a node it reads, or sends,
// 2 (L-1)/L of the buffer. Worlds: any nodes.
#include <algorithm>
#include <cstddef>
#include <vector>

#include "ops/algorithms.hpp"
#include "ops/kernels/kernels.hpp"
#include "ops/select.hpp"
#include "ops/steps/messages.hpp"
#include "ops/steps/nodes.hpp"

namespace kolo::ops {
namespace {

// Messages inside nodes and among peers use separate halves of the tags.
constexpr int kHalfOfTags = kAlgorithmTagCount / 2;
constexpr std::size_t kConvertedAtOnce = std::size_t{32} << 10;

/// The common fields of steps 1 and 3.
CollectiveCall call_inside(const CollectiveCall& call, Communicator& neighbours) {
  CollectiveCall inside = call;
  inside.communicator = &neighbours;
  inside.window = call.nodes->window;
  inside.nodes = nullptr;
  inside.compressor = nullptr;
  inside.codec = nullptr;
  inside.residual = nullptr;
  return inside;
}

/// Step 2 with a compressor.
Task allreduce_converted(CollectiveCall call) {
  const Compressor& compressor = *call.compressor;
  const std::size_t element = size_of(call.dtype);
  const DType wire = compressor.wire_dtype(call.dtype);
  TransferScratch scratch(call.count * size_of(wire));
  const std::size_t step = kConvertedAtOnce;
  for (std::size_t begin = 0; begin < call.count; begin += step) {
    compressor.compress(call.dtype, call.input + begin * element,
                        std::min(step, call.count - begin), scratch.data() + begin * size_of(wire));
    co_await yield();
  }
  CollectiveCall exchange = call;
  exchange.compressor = nullptr;
  exchange.dtype = wire;
  exchange.input = exchange.output = scratch.data();
  scratch.set_in_use(true);
  co_await (call.communicator->size() <= kMaxDirectRanks ? allreduce_direct
                                                         : allreduce_ring)(exchange);
  scratch.set_in_use(false);
  for (std::size_t begin = 0; begin < call.count; begin += step) {
    compressor.decompress(call.dtype, scratch.data() + begin * size_of(wire),
                          std::min(step, call.count - begin), call.output + begin * element);
    co_await yield();
  }
}

}  // namespace

Task allreduce_between_nodes(CollectiveCall call) {
  const NodePlaces places(call.nodes->node_of_rank, call.communicator->rank());
  const std::vector<Range> pieces = places.pieces(call.count);
  const Range own = pieces[static_cast<std::size_t>(places.place())];
  std::byte* const piece = bytes_of(call, call.output, own).data();
  const bool has_codec = call.codec != nullptr;
  const double prescale = call.reduction.prescale;

  SubCommunicator neighbours(*call.communicator, places.neighbours(), 0, kHalfOfTags);
  const CollectiveCall inside = call_inside(call, neighbours);

  CollectiveCall scatter = inside;
  scatter.output = piece;
  scatter.reduction = with_scales(call.reduction, has_codec ? 1.0 : prescale, 1.0);
  std::vector<std::size_t> counts;
  for (const Range& each : pieces) counts.push_back(each.length);
  scatter.counts = counts;
  co_await (inside.window != nullptr ? reduce_scatter_window : reduce_scatter_direct)(scatter);

  if (places.has_piece()) {
    SubCommunicator peers(*call.communicator, places.peers(), kHalfOfTags, kHalfOfTags);
    CollectiveCall exchange = call;
    exchange.communicator = &peers;
    exchange.nodes = nullptr;
    exchange.input = exchange.output = piece;
    exchange.count = own.length;
    exchange.reduction =
        with_scales(call.reduction, has_codec ? prescale : 1.0, call.reduction.postscale);
    co_await (has_codec ? allreduce_coded : allreduce_converted)(exchange);
  }

  CollectiveCall gather = inside;
  gather.input = piece;
  gather.counts = counts;
  co_await (inside.window != nullptr ? allgather_window : allgather_pairwise)(gather);
}

}  // namespace kolo::ops
