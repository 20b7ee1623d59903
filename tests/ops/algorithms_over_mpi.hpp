#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <numeric>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "comm/mpi_world.hpp"
#include "contract/reduce_case.hpp"
#include "contract/scatter_buffers.hpp"
#include "contract/scattered_nodes.hpp"
#include "ops/registry.hpp"

namespace kolo::test {

inline constexpr std::size_t kWindowBytes = 16384;
inline constexpr std::size_t kSharedBytes = std::size_t{4} << 20;  // larger than any buffer below

/// Runs algorithms among processes, with messages over MPI and real shared memory.
class AlgorithmsOverMpi : public testing::Test {
 protected:
  AlgorithmsOverMpi() {
    std::vector<int> ranks(static_cast<std::size_t>(world_.topology().size));
    std::iota(ranks.begin(), ranks.end(), 0);
    communicator_ = world_.make_communicator(ranks, 0);
    finish(world_.make_window(*communicator_, kAlgorithmTagCount, kWindowBytes, staging_));
    finish(world_.make_window(*communicator_, kAlgorithmTagCount, kSharedBytes, shared_));
    for (int rank = 0; rank < size(); ++rank) {
      peer_buffers_.push_back(shared_->segment(rank).data());
    }
    std::erase_if(ranks, [&](int rank) { return node_of(rank) != node_of(this->rank()); });
    node_communicator_ = world_.make_communicator(ranks, 1);
    finish(
        world_.make_window(*node_communicator_, kAlgorithmTagCount, kWindowBytes, node_staging_));
    nodes_ = {.node_of_rank = node_of_rank_, .window = node_staging_.get()};
  }

  static void finish(Task task) {
    while (task.poll() != Progress::Done) std::this_thread::yield();
  }

  int size() const { return communicator_->size(); }
  int rank() const { return communicator_->rank(); }
  std::size_t ranks() const { return static_cast<std::size_t>(size()); }
  int node_of(int rank) const { return node_of_rank_[static_cast<std::size_t>(rank)]; }

  /// All algorithms but Adasum, which does not reduce elementwise.
  std::vector<Algorithm> of(Collective collective) const {
    std::vector<Algorithm> algorithms;
    for (const Algorithm& algorithm : registry_.algorithms()) {
      const bool is_adasum = algorithm.name == "adasum";
      if (algorithm.collective == collective && !is_adasum) algorithms.push_back(algorithm);
    }
    return algorithms;
  }

  /// Copies `content` into shared memory, for calls with `peer_buffers`.
  std::byte* share(std::span<const std::byte> content) {
    std::byte* const place = peer_buffers_[static_cast<std::size_t>(rank())];
    std::copy(content.begin(), content.end(), place);
    return place;
  }

  template <class Value>
  static std::span<const std::byte> bytes_in(const std::vector<Value>& values) {
    return std::as_bytes(std::span(values));
  }

  void run(const Algorithm& algorithm, CollectiveCall call) {
    call.communicator = communicator_.get();
    call.window = staging_.get();
    call.nodes = &nodes_;
    finish(algorithm.run(call));
  }

  /// Up to `largest` elements for each rank; if there are several ranks, the first gets none.
  std::vector<std::size_t> uneven(std::size_t largest) const {
    std::vector<std::size_t> counts;
    for (int peer = 0; peer < size(); ++peer) {
      counts.push_back(largest * static_cast<std::size_t>(peer + 1) / ranks());
    }
    if (size() > 1) counts.front() = 0;
    return counts;
  }

  /// Checks `item` with the sum of `counts` as its count.
  void check_reduce_scatter(const Algorithm& algorithm, const std::vector<std::size_t>& counts,
                            ReduceCase item) {
    item.count = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
    ScatterBuffers buffers({item, counts}, rank());
    CollectiveCall call = buffers.call();
    if (algorithm.needs == Needs::PeerBuffers) {
      const std::byte* const input = std::exchange(call.input, share(reduce_input(item, rank())));
      if (item.in_place) call.output = share({}) + (call.output - input);
      call.peer_buffers = peer_buffers_;
    }
    run(algorithm, call);
    buffers.expect_guards_intact();
    const std::size_t own_bytes = counts[static_cast<std::size_t>(rank())] * size_of(item.dtype);
    expect_reduced(item, gather(item, counts, {call.output, own_bytes}), size(),
                   algorithm.rank_ordered);
  }

  /// The results of all ranks, concatenated.
  std::vector<std::byte> gather(const ReduceCase& item, const std::vector<std::size_t>& counts,
                                std::span<const std::byte> own) {
    std::vector<std::byte> all(item.count * size_of(item.dtype));
    run(registry_.find(Collective::AllGather, "ring"), {.input = own.data(),
                                                        .output = all.data(),
                                                        .dtype = item.dtype,
                                                        .counts = counts,
                                                        .segment_bytes = 65536});
    return all;
  }

  std::vector<std::byte> reduce(const Algorithm& algorithm, const ReduceCase& item) {
    ReduceBuffers buffers(item, rank());
    buffers.fill();
    CollectiveCall call = buffers.call();
    if (algorithm.needs == Needs::PeerBuffers) {
      call.peer_buffers = peer_buffers_;
      call.output = share(reduce_input(item, rank()));
      call.input = call.output;
    }
    run(algorithm, call);
    buffers.expect_guards_intact();
    return {call.output, call.output + item.count * size_of(item.dtype)};
  }

  /// Compares with rank 0's result, which rank 0 broadcasts.
  void expect_same_on_all_ranks(const ReduceCase& item, const std::vector<std::byte>& result) {
    std::vector<std::byte> first = result;
    finish(registry_.find(Collective::Broadcast, "binomial")
               .run({.communicator = communicator_.get(),
                     .output = first.data(),
                     .count = item.count,
                     .dtype = item.dtype,
                     .segment_bytes = 256}));
    EXPECT_EQ(result, first) << item;
  }

  ops::Registry registry_;
  comm::MpiWorld world_{Config{}};
  std::unique_ptr<Communicator> communicator_;
  std::shared_ptr<SharedWindow> staging_;
  std::shared_ptr<SharedWindow> shared_;
  std::vector<std::byte*> peer_buffers_;
  std::vector<int> node_of_rank_ = scattered_nodes(world_.topology().size);
  std::unique_ptr<Communicator> node_communicator_;  // among the ranks of this fake node
  std::shared_ptr<SharedWindow> node_staging_;
  Nodes nodes_;
};

}  // namespace kolo::test
