#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "kolo/codec.hpp"
#include "kolo/communicator.hpp"
#include "kolo/compressor.hpp"
#include "kolo/dtype.hpp"
#include "kolo/reduction.hpp"
#include "kolo/shared_window.hpp"
#include "kolo/task.hpp"

namespace kolo {

#pragma GCC visibility push(default)
/// Kinds of operations. The values are part of the control protocol: append only.
enum class Collective : std::uint8_t {
  AllReduce,
  AllGather,
  Broadcast,
  ShareMemory,
  ReduceScatter,
  AllToAll,
  Barrier,
  AddProcessSet,
  RemoveProcessSet,
  Send,  ///< to one rank: nothing that ranks agree on, like Receive
  Receive,
};

std::string_view name_of(Collective collective);

/// Algorithms may use the tags 0 … kAlgorithmTagCount - 1; the runtime uses the others.
inline constexpr int kAlgorithmTagCount = 128;

/// How the ranks of a call lie on several nodes.
struct Nodes {
  std::span<const int> node_of_rank{};  ///< 0, 1, …, in the order of each node's lowest rank
  bool is_homogeneous = true;           ///< every node has the same number of ranks
  SharedWindow* window = nullptr;       ///< among this node's ranks, in their order; may be null
};

/// The arguments of a collective on one rank, as an algorithm sees them. Buffers are contiguous
/// memory of `dtype`; nothing else changes or frees them until the Task has ended.
///
/// AllReduce: `input` and `output` hold `count` elements; may be the same memory.
/// AllGather: `input` holds `counts[rank]` elements, `output` those of all ranks one after another;
///   `input` may be this rank's range of it. With `shares_output`, the ranks of a node share one
///   `output`, and each writes a part of it.
/// ReduceScatter: `input` holds the sum of `counts` elements, `output` receives this rank's
///   `counts[rank]` combined ones; it may be this rank's range of `input`, whose other elements do
///   not change.
/// Broadcast: `output` holds `count` elements, supplied by rank `root`; `input` is not used.
/// AllToAll: `input` holds `send_counts[r]` elements for each rank r one after another, `output`
///   receives `receive_counts[r]` from each. Different memory.
struct CollectiveCall {
  Communicator* communicator = nullptr;
  SharedWindow* window = nullptr;  ///< null if the ranks share no memory
  const Nodes* nodes = nullptr;    ///< null if all ranks share one node
  /// The addresses of all ranks' buffers in this process, if all of them are in shared memory;
  /// empty otherwise. Other ranks read and write them until the Task has ended.
  /// AllReduce, Broadcast: `output`, which is also the input.
  /// AllGather: all of `output`; `input` is this rank's range of it.
  /// ReduceScatter: `input`; `output` may still be this rank's range of it, or private.
  /// AllToAll: `input`; `output` may be private.
  std::span<std::byte* const> peer_buffers{};
  bool shares_output = false;  ///< AllGather, if the ranks qualify for Needs::Nodes
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::size_t count = 0;
  DType dtype = DType::Float32;
  Reduction reduction{};  ///< AllReduce, ReduceScatter; never Average
  /// AllReduce, ReduceScatter: compresses the elements before they are combined and sent. Null: no
  /// compression; always null for algorithms without the trait `compresses`.
  const Compressor* compressor = nullptr;
  /// AllReduce, ReduceScatter: only for the built-in algorithms that encode, which the runtime
  /// calls directly.
  const Codec* codec = nullptr;
  float* residual = nullptr;              ///< of the input, or null; see AllreduceOptions::residual
  int root = 0;                           ///< Broadcast
  std::span<const std::size_t> counts{};  ///< AllGather, ReduceScatter: by rank, the same on all
  std::span<const std::size_t> send_counts{};     ///< AllToAll
  std::span<const std::size_t> receive_counts{};  ///< AllToAll; the senders' counts for this rank
  std::size_t segment_bytes = 0;  ///< longest message or chunk; a multiple of 64, the same on all
};

/// What an algorithm needs beyond messages.
/// Window: a SharedWindow to stage through. PeerBuffers: that, and `peer_buffers`.
/// Nodes: `nodes`, homogeneous and with a window.
enum class Needs : std::uint8_t { Messages, Window, PeerBuffers, Nodes };

/// An algorithm: a function that returns a Task, and the traits by which the runtime selects it.
///
/// Every rank calls `run` with matching arguments, which are copied into the Task's frame.
struct Algorithm {
  std::string_view name;
  Collective collective;
  Needs needs;
  /// Combines every element in rank order, (x0 + x1) + x2 …, and 16-bit floats in float32, so
  /// that bits do not depend on segmentation. Otherwise results are equal on all ranks and in every
  /// run, but depend on count and world size.
  bool rank_ordered;
  Task (*run)(CollectiveCall call);
  /// Supports CollectiveCall::compressor: compresses while it runs, in pieces that stay in cache.
  bool compresses = false;
};
#pragma GCC visibility pop

#pragma GCC visibility push(default)
/// Combines inputs element by element, in their order and in one pass, and writes all outputs:
///
///     out[i] = postscale * ((prescale * in0[i]) op (prescale * in1[i]) op …)
///
/// 16-bit floats are computed in float32 and rounded once, to nearest, ties to even. Min and Max
/// return NaN if any input is NaN. Integers wrap around; their scales multiply in float64 and
/// truncate toward zero. Scales are ignored for Bool and must be 1 for Custom. The bits of an
/// element do not depend on its place in a buffer. Allocates nothing.
///
/// @param inputs at least one; aligned to one element
/// @param outputs each is an input's memory or overlaps none
/// @param count elements of each
/// @throws InvalidArgument for Average and Adasum, for Bool with anything but Min, Max and Custom,
///         for Min and Max of complex types, and without inputs
void combine(DType dtype, const Reduction& reduction, std::span<const std::byte* const> inputs,
             std::span<std::byte* const> outputs, std::size_t count);
#pragma GCC visibility pop

}  // namespace kolo
