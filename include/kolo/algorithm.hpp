#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "kolo/communicator.hpp"
#include "kolo/compressor.hpp"
#include "kolo/dtype.hpp"
#include "kolo/reduction.hpp"
#include "kolo/shared_window.hpp"
#include "kolo/task.hpp"

namespace kolo {

/// What an operation does. The numbers travel in control messages: append only.
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
};

std::string_view name_of(Collective collective);

/// Algorithms send under the tags 0 … kAlgorithmTagCount - 1; the rest is the runtime's.
inline constexpr int kAlgorithmTagCount = 128;

/// The nodes that the ranks of a call run on, where there are several.
struct Nodes {
  std::span<const int> node_of_rank{};  ///< 0, 1, …, in the order of each node's lowest rank
  bool is_homogeneous = true;           ///< every node has the same number of ranks
  SharedWindow* window = nullptr;  ///< among this node's ranks, in their order; null: there is none
};

/// One run of a collective on one rank, as an algorithm sees it. Buffers are contiguous host memory
/// of `dtype` and stay alive and untouched by others until the Task has ended.
///
/// AllReduce: `count` elements in `input` and `output` (may be the same memory).
/// AllGather: `input` holds `counts[rank]` elements, `output` all ranks' one after another (`input`
///   may be this rank's place in it).
/// ReduceScatter: `input` holds the sum of `counts` elements, of which `output` gets this rank's,
///   `counts[rank]`, combined (`output` may be this rank's place in it; the rest of `input` then
///   stays as it is).
/// Broadcast: `count` elements in `output`, which rank `root` supplies; `input` is unused.
/// AllToAll: `input` holds `send_counts[r]` elements for each rank r one after another, `output`
///   gets `receive_counts[r]` from each rank r one after another. Different memory.
struct CollectiveCall {
  Communicator* communicator = nullptr;
  SharedWindow* window = nullptr;  ///< null where the ranks share no memory
  const Nodes* nodes = nullptr;    ///< null where all ranks share one node
  /// Where the buffer of every rank lies that others need, seen from this rank, when all of them
  /// lie in shared memory; otherwise empty. Others read and write it until the Task has ended.
  /// AllReduce, Broadcast: `output`, which holds the input too.
  /// AllGather: all of `output`; `input` is this rank's place in it.
  /// ReduceScatter: `input`; `output` may still be this rank's place in it, or private.
  /// AllToAll: `input`; `output` may be private.
  std::span<std::byte* const> peer_buffers{};
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::size_t count = 0;
  DType dtype = DType::Float32;
  Reduction reduction{};  ///< AllReduce, ReduceScatter; never Average
  /// AllReduce, ReduceScatter: makes of the elements of `dtype` what is combined and moved. Null:
  /// they are that themselves, as always for algorithms that do not have the trait `compresses`.
  const Compressor* compressor = nullptr;
  int root = 0;                           ///< Broadcast
  std::span<const std::size_t> counts{};  ///< AllGather, ReduceScatter: by rank, the same on all
  std::span<const std::size_t> send_counts{};     ///< AllToAll
  std::span<const std::size_t> receive_counts{};  ///< AllToAll; the senders' counts for this rank
  std::size_t segment_bytes = 0;  ///< longest message or chunk; a multiple of 64, the same on all
};

/// What an algorithm needs beyond messages.
/// Window: a SharedWindow to stage through. PeerBuffers: that, and `peer_buffers`.
/// Nodes: `nodes`, homogeneous and with a window.
enum class Needs : std::uint8_t { Messages, NativeCollectives, Window, PeerBuffers, Nodes };

/// An algorithm is a function that makes a Task, and what must be known to choose it.
///
/// `run` is called on every rank with calls that agree; the call is copied into the Task's frame.
struct Algorithm {
  std::string_view name;
  Collective collective;
  Needs needs;
  /// Element i is combined in rank order ((x0 + x1) + x2 …, 16-bit floats in float32) wherever it
  /// lies in the buffer, so results have the same bits under any segmentation. Otherwise results
  /// are the same on all ranks and in every run, but depend on count and world size.
  bool rank_ordered;
  Task (*run)(CollectiveCall call);
  /// Compresses on the way, in pieces that stay in cache, where a call asks for it.
  bool compresses = false;
};

}  // namespace kolo
