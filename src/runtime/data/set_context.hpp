#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/shared_heap.hpp"
#include "compression/registry.hpp"
#include "kolo/algorithm.hpp"
#include "kolo/communicator.hpp"
#include "kolo/config.hpp"
#include "kolo/reduction.hpp"
#include "kolo/shared_window.hpp"
#include "kolo/task.hpp"
#include "ops/registry.hpp"
#include "runtime/protocol/request.hpp"

namespace kolo::runtime {

/// The algorithms, compressors and reductions to choose from; the same on all ranks.
struct Choices {
  const ops::Registry& algorithms;
  const compression::Registry& compressors;
  std::span<const CustomReduction> reductions;

  /// Throws InvalidArgument, naming the choices.
  const CustomReduction& find_reduction(std::string_view name) const;
};

/// What moves a process set's data, on one kind of device: the members, what connects them, and the
/// choice of algorithms.
struct SetContext {
  Choices choices;
  const Config& config;
  std::string name{};                            ///< of the process set, for error texts
  std::vector<int> world_ranks{};                ///< of the members, ascending
  std::unique_ptr<Communicator> communicator{};  ///< among the members
  std::shared_ptr<SharedWindow> staging{};       ///< among the members; may be null
  /// Matched by order, among the members; may be null.
  std::shared_ptr<comm::SharedHeap> heap{};
  std::vector<int> node_of_rank{};                    ///< of the members
  std::unique_ptr<Communicator> node_communicator{};  ///< among those on this node; may be null
  std::shared_ptr<SharedWindow> node_staging{};       ///< the same
  std::optional<Nodes> nodes{};  ///< a view of these, if there are several nodes

  /// Frees communicators and windows. What any thread may ask for stays: name, ranks, choices, and
  /// whether nodes share memory.
  void release();

  int world_rank(int rank) const { return world_ranks[static_cast<std::size_t>(rank)]; }
  /// For error texts, which count in the world: "rank 3".
  std::string rank_text(int rank) const { return "rank " + std::to_string(world_rank(rank)); }

  /// How long a rank may be silent: KOLO_LOST_AFTER; the maximum duration if that is 0.
  std::chrono::nanoseconds longest_silence() const {
    const std::chrono::nanoseconds limit = config.lost_after;
    return limit.count() > 0 ? limit : std::chrono::nanoseconds::max();
  }

  /// For traces: the world rank that the data which do not advance wait for; -1: unknown.
  int awaited() const;

  /// @return a call without buffers
  CollectiveCall make_call() const;

  /// Whether algorithms with Needs::Nodes can run.
  bool has_nodes() const { return nodes && nodes->is_homogeneous && nodes->window != nullptr; }
  /// The algorithm for `bytes` of data.
  const Algorithm& choose(Collective collective, std::size_t bytes, ReduceOp op = ReduceOp::Sum,
                          bool has_peer_buffers = false, bool shares_output = false) const;

  /// The codec that encodes tensors of a reduction; null: none.
  const Codec* codec_of(const Request& request) const;
  /// Throws InvalidArgument for unknown compressors, codecs and reductions, for requests that a
  /// codec does not support, and for shared memory of a node whose ranks cannot share memory.
  [[gnu::visibility("default")]] void check(const Request& request) const;  // libkolo.so uses it
};

/// Exchanges of small numbers among the ranks of an engine, such as row counts. Collective.

/// Gathers the numbers of all ranks, equally many on each, in rank order.
Task gather_numbers(const SetContext& set, const std::vector<std::size_t>& own,
                    std::vector<std::size_t>& all);

/// Sends sent[r] to each rank r, and receives one number from each.
Task exchange_numbers(const SetContext& set, const std::vector<std::size_t>& sent,
                      std::vector<std::size_t>& received);

}  // namespace kolo::runtime
