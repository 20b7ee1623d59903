// All algorithms once more, among processes: messages over MPI, memory that is really shared, and
// the algorithm that exists under MPI only.

#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "comm/mpi_world.hpp"
#include "contract/reduce_case.hpp"
#include "kolo/error.hpp"
#include "ops/kernels.hpp"
#include "ops/reduction_plan.hpp"
#include "ops/registry.hpp"
#include "support/agree.hpp"

namespace kolo::test {
namespace {

constexpr std::size_t kWindowBytes = 16384;

class AlgorithmsMpiTest : public testing::Test {
 protected:
  AlgorithmsMpiTest() {
    std::vector<int> ranks(static_cast<std::size_t>(world_.topology().size));
    std::iota(ranks.begin(), ranks.end(), 0);
    communicator_ = world_.make_communicator(ranks, 0);
    finish(world_.make_window(*communicator_, kAlgorithmTagCount, kWindowBytes, staging_));
    finish(world_.make_window(*communicator_, kAlgorithmTagCount, kWindowBytes, shared_));
    for (int rank = 0; rank < size(); ++rank) {
      peer_buffers_.push_back(shared_->segment(rank).data());
    }
  }

  static void finish(Task task) {
    while (task.poll() != Progress::Done) std::this_thread::yield();
  }

  int size() const { return communicator_->size(); }
  int rank() const { return communicator_->rank(); }

  std::vector<std::byte> reduce(const Algorithm& algorithm, const ReduceCase& item) {
    ReduceBuffers buffers(item, rank());
    buffers.fill();
    CollectiveCall call = buffers.call();
    call.communicator = communicator_.get();
    call.window = staging_.get();
    if (algorithm.needs == Needs::PeerBuffers) {
      call.peer_buffers = peer_buffers_;
      call.output = peer_buffers_[static_cast<std::size_t>(rank())];
      const std::vector<std::byte> input = reduce_input(item, rank());
      std::copy(input.begin(), input.end(), call.output);
      call.input = call.output;
    }
    finish(algorithm.run(call));
    buffers.expect_bounds_kept();
    return {call.output, call.output + item.count * size_of(item.dtype)};
  }

  /// Compares with rank 0's, which it hears of by broadcast.
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
};

TEST_F(AlgorithmsMpiTest, EveryAllReduce_EveryTypeAndOperation) {
  for (const Algorithm& algorithm : registry_.algorithms()) {
    if (algorithm.collective != Collective::AllReduce) continue;
    SCOPED_TRACE(algorithm.name);
    for (const DType dtype : kAllDTypes) {
      for (const ReduceOp op : kAllOps) {
        if (!ops::is_combinable(dtype, op)) continue;
        for (const std::size_t count : {0u, 1u, 3u, 331u, 1013u}) {
          for (const bool in_place : {false, true}) {
            const ReduceCase item{dtype, {op, 0.5, in_place ? 1.0 : 3.0}, count, 512, in_place, 1};
            const std::vector<std::byte> result = reduce(algorithm, item);
            expect_reduced(item, result, size(), algorithm.rank_ordered);
            expect_same_on_all_ranks(item, result);
          }
        }
      }
    }
  }
}

TEST_F(AlgorithmsMpiTest, Native_LeavesTheInputAlone) {
  const Algorithm& algorithm = registry_.find(Collective::AllReduce, "mpi");
  for (const double prescale : {1.0, 0.5}) {
    const ReduceCase item{.reduction = {ReduceOp::Sum, prescale}, .count = 501};
    expect_reduced(item, reduce(algorithm, item), size(), false);
  }
}

TEST_F(AlgorithmsMpiTest, Native_AverageOfLargeHalvesStaysFinite) {
  const Algorithm& algorithm = registry_.find(Collective::AllReduce, "mpi");
  const ops::ReductionPlan plan =
      ops::plan_reduction(DType::Float16, ReduceOp::Average, 1, 1, algorithm.rank_ordered, size());
  std::vector<std::uint16_t> halves(100, kFloat16Format.encode(30000));
  auto* buffer = reinterpret_cast<std::byte*>(halves.data());
  finish(algorithm.run({.communicator = communicator_.get(),
                        .input = buffer,
                        .output = buffer,
                        .count = halves.size(),
                        .dtype = plan.wire,
                        .reduction = plan.reduction,
                        .segment_bytes = 64}));
  for (const std::uint16_t half : halves) EXPECT_EQ(kFloat16Format.decode(half), 30000);
}

TEST_F(AlgorithmsMpiTest, LongMessages_ThroughEveryAllReduce) {
  for (const char* name : {"direct", "ring", "mpi", "window", "window_small"}) {
    const Algorithm& algorithm = registry_.find(Collective::AllReduce, name);
    for (const bool in_place : {false, true}) {
      const ReduceCase item{.count = 400'003, .segment_bytes = 65536, .in_place = in_place};
      expect_reduced(item, reduce(algorithm, item), size(), algorithm.rank_ordered);
    }
  }
}

TEST_F(AlgorithmsMpiTest, AllGather_UnevenCounts) {
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
  std::vector<std::int32_t> output(expected.size());
  finish(registry_.find(Collective::AllGather, "ring")
             .run({.communicator = communicator_.get(),
                   .input = reinterpret_cast<const std::byte*>(input.data()),
                   .output = reinterpret_cast<std::byte*>(output.data()),
                   .dtype = DType::Int32,
                   .gather_counts = counts,
                   .segment_bytes = 16384}));
  EXPECT_EQ(output, expected);
}

TEST_F(AlgorithmsMpiTest, Broadcast_FromEveryRoot) {
  for (int root = 0; root < size(); ++root) {
    std::vector<double> values(70'001, -1);
    std::vector<double> expected(values.size());
    std::iota(expected.begin(), expected.end(), root * 0.5);
    if (rank() == root) values = expected;
    finish(registry_.find(Collective::Broadcast, "binomial")
               .run({.communicator = communicator_.get(),
                     .output = reinterpret_cast<std::byte*>(values.data()),
                     .count = values.size(),
                     .dtype = DType::Float64,
                     .root = root,
                     .segment_bytes = 65536}));
    EXPECT_EQ(values, expected) << "root " << root;
  }
}

}  // namespace
}  // namespace kolo::test
