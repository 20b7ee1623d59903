// All reduction algorithms among processes, with messages over MPI and real shared memory.
#include <algorithm>
#include <cstddef>
#include <cstdint>
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
#include "ops/steps/reduction_plan.hpp"

namespace kolo::test::algorithms_mpi_test {

constexpr std::size_t kWindowBytes = 16384;
constexpr std::size_t kSharedBytes = std::size_t{4} << 20;  // larger than any buffer below

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

using AlgorithmsMpiTest = AlgorithmsOverMpi;

TEST_F(AlgorithmsMpiTest, EveryAllReduce_EveryTypeAndOperation) {
  for (const Algorithm& algorithm : of(Collective::AllReduce)) {
    SCOPED_TRACE(algorithm.name);
    for (const DType dtype : kAllDTypes) {
      for (const ReduceOp op : kAllOps) {
        if (!is_defined(dtype, op)) continue;
        for (const std::size_t count : {0u, 1u, 3u, 331u, 1013u}) {
          // Each count both ways, over all operations.
          const bool in_place = (static_cast<std::size_t>(op) + count) % 2 != 0;
          const ReduceCase item{dtype, {op, 0.5, in_place ? 1.0 : 3.0}, count, 512, in_place, 1};
          const std::vector<std::byte> result = reduce(algorithm, item);
          expect_reduced(item, result, size(), algorithm.rank_ordered);
          expect_same_on_all_ranks(item, result);
        }
      }
    }
  }
}

TEST_F(AlgorithmsMpiTest, Adasum_OfOrthogonalVectorsIsTheirSum) {
  const Algorithm& algorithm = registry_.find(Collective::AllReduce, "adasum");
  std::vector<float> values(100'003);
  std::vector<float> expected(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    expected[i] = static_cast<float>(i % 97) - 48;
    if (i % ranks() == static_cast<std::size_t>(rank())) values[i] = expected[i];
  }
  auto* buffer = reinterpret_cast<std::byte*>(values.data());
  run(algorithm, {.input = buffer,
                  .output = buffer,
                  .count = values.size(),
                  .reduction = {ReduceOp::Adasum},
                  .segment_bytes = 16384});
  EXPECT_EQ(values, expected);
}

TEST_F(AlgorithmsMpiTest, Adasum_HasTheSameBitsOnAllRanks) {
  const Algorithm& algorithm = registry_.find(Collective::AllReduce, "adasum");
  for (const DType dtype : {DType::Float16, DType::BFloat16, DType::Float32, DType::Float64,
                            DType::Complex64, DType::Complex128}) {
    const ReduceCase item{
        .dtype = dtype, .reduction = {ReduceOp::Adasum, 0.5, 3}, .count = 3001, .in_place = true};
    expect_same_on_all_ranks(item, reduce(algorithm, item));
  }
}

TEST_F(AlgorithmsMpiTest, LongMessages_ThroughEveryAllReduce) {
  for (const Algorithm& algorithm : of(Collective::AllReduce)) {
    for (const bool in_place : {false, true}) {
      const ReduceCase item{.count = 150'001, .segment_bytes = 65536, .in_place = in_place};
      expect_reduced(item, reduce(algorithm, item), size(), algorithm.rank_ordered);
    }
  }
}

TEST_F(AlgorithmsMpiTest, EveryReduceScatter_EveryTypeAndOperation) {
  for (const Algorithm& algorithm : of(Collective::ReduceScatter)) {
    SCOPED_TRACE(algorithm.name);
    for (const DType dtype : kAllDTypes) {
      for (const ReduceOp op : kAllOps) {
        if (!is_defined(dtype, op)) continue;
        for (const std::size_t largest : {0u, 1u, 331u}) {
          for (const bool in_place : {false, true}) {
            const Reduction reduction{op, 0.5, in_place ? 1.0 : 3.0};
            check_reduce_scatter(algorithm, uneven(largest),
                                 {.dtype = dtype,
                                  .reduction = reduction,
                                  .segment_bytes = 512,
                                  .in_place = in_place,
                                  .offset = 1});
          }
        }
      }
    }
  }
}

TEST_F(AlgorithmsMpiTest, LongMessages_ThroughEveryReduceScatter) {
  for (const Algorithm& algorithm : of(Collective::ReduceScatter)) {
    SCOPED_TRACE(algorithm.name);
    check_reduce_scatter(algorithm, uneven(80'001), {.segment_bytes = 65536});
    check_reduce_scatter(algorithm, uneven(80'001), {.segment_bytes = 65536, .in_place = true});
  }
}

// --- algorithms that move elements without reduction ---

using MovesMpiTest = AlgorithmsOverMpi;

TEST_F(MovesMpiTest, EveryAllToAll_UnevenCounts) {
  const auto count = [](int from, int to) {
    return static_cast<std::size_t>((from * 3 + to * 2) % 5) * 20'011;
  };
  const auto value = [](int from, int to, std::size_t i) {
    return from * 10'000'000 + to * 1'000'000 + static_cast<std::int32_t>(i);
  };
  std::vector<std::size_t> sent;
  std::vector<std::size_t> received;
  std::vector<std::int32_t> input;
  std::vector<std::int32_t> expected;
  for (int peer = 0; peer < size(); ++peer) {
    sent.push_back(count(rank(), peer));
    received.push_back(count(peer, rank()));
    for (std::size_t i = 0; i < sent.back(); ++i) input.push_back(value(rank(), peer, i));
    for (std::size_t i = 0; i < received.back(); ++i) expected.push_back(value(peer, rank(), i));
  }
  for (const Algorithm& algorithm : of(Collective::AllToAll)) {
    std::vector<std::int32_t> output(expected.size());
    run(algorithm, {.peer_buffers = peer_buffers_,
                    .input = share(bytes_in(input)),
                    .output = reinterpret_cast<std::byte*>(output.data()),
                    .dtype = DType::Int32,
                    .send_counts = sent,
                    .receive_counts = received,
                    .segment_bytes = 16384});
    EXPECT_EQ(output, expected) << algorithm.name;
  }
}

TEST_F(MovesMpiTest, EveryAllGather_UnevenCounts) {
  std::vector<std::size_t> counts;
  std::vector<std::int32_t> expected;
  for (int peer = 0; peer < size(); ++peer) {
    counts.push_back(static_cast<std::size_t>(peer) * 30011);  // rank 0 has none
    for (std::size_t i = 0; i < counts.back(); ++i) {
      expected.push_back(peer * 1'000'000 + static_cast<std::int32_t>(i));
    }
  }
  const std::size_t own = counts[static_cast<std::size_t>(rank())];
  std::vector<std::int32_t> input(own);
  std::iota(input.begin(), input.end(), rank() * 1'000'000);
  const std::size_t begin =
      std::accumulate(counts.begin(), counts.begin() + rank(), std::size_t{0});
  for (const Algorithm& algorithm : of(Collective::AllGather)) {
    std::byte* const output = share(bytes_in(std::vector<std::int32_t>(expected.size())));
    std::byte* const place = output + begin * sizeof(std::int32_t);
    const bool in_place = algorithm.needs == Needs::PeerBuffers;
    if (in_place) std::ranges::copy(bytes_in(input), place);
    run(algorithm, {.peer_buffers = peer_buffers_,
                    .input = in_place ? place : bytes_in(input).data(),
                    .output = output,
                    .dtype = DType::Int32,
                    .counts = counts,
                    .segment_bytes = 16384});
    EXPECT_TRUE(std::ranges::equal(std::span(output, expected.size() * sizeof(std::int32_t)),
                                   bytes_in(expected)))
        << algorithm.name;
  }
}

TEST_F(MovesMpiTest, EveryBroadcast_FromEveryRoot) {
  for (int root = 0; root < size(); ++root) {
    std::vector<double> expected(70'001);
    std::iota(expected.begin(), expected.end(), root * 0.5);
    for (const Algorithm& algorithm : of(Collective::Broadcast)) {
      std::vector<double> values(expected.size(), -1);
      if (rank() == root) values = expected;
      std::byte* const buffer = share(bytes_in(values));
      run(algorithm, {.peer_buffers = peer_buffers_,
                      .output = buffer,
                      .count = values.size(),
                      .dtype = DType::Float64,
                      .root = root,
                      .segment_bytes = 65536});
      EXPECT_TRUE(
          std::ranges::equal(std::span(buffer, bytes_in(expected).size()), bytes_in(expected)))
          << algorithm.name << ", root " << root;
    }
  }
}

}  // namespace kolo::test::algorithms_mpi_test
