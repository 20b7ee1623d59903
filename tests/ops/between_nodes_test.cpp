// The all-reduce that compresses only between nodes, on every layout of ranks: sums, bytes within
// and between nodes, equal bits, error feedback.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "compression/registry.hpp"
#include "contract/algorithm_contract.hpp"
#include "ops/algorithms.hpp"
#include "ops/steps/nodes.hpp"

namespace kolo::test::between_nodes_test {

using Layout = std::vector<int>;  // the node of every rank

struct Traffic {
  std::uint64_t sent = 0;
  std::uint64_t moved = 0;  // within nodes
};

class BetweenNodesTest : public testing::TestWithParam<Layout> {
 protected:
  std::size_t ranks() const { return GetParam().size(); }
  std::uint64_t nodes() const {
    return 1 + static_cast<std::uint64_t>(*std::ranges::max_element(GetParam()));
  }
  std::uint64_t ranks_of(int node) const {
    return static_cast<std::uint64_t>(std::ranges::count(GetParam(), node));
  }
  /// The number of ranks per node that encode a piece.
  std::uint64_t places() const {
    std::uint64_t least = ranks();
    for (int node = 0; node < static_cast<int>(nodes()); ++node) {
      least = std::min(least, ranks_of(node));
    }
    return least;
  }

  /// Runs `call` on every rank; nodes use windows or messages.
  Traffic run(bool has_windows, const std::function<CollectiveCall(std::size_t rank)>& make_call) {
    Traffic total;
    std::mutex mutex;
    run_tasks_on_nodes(GetParam(), kContractWindowBytes, kFirstSeed, [&](const Rank& rank) -> Task {
      Nodes nodes = *rank.nodes;
      if (!has_windows) nodes.window = nullptr;
      CollectiveCall call = make_call(static_cast<std::size_t>(rank.rank));
      call.communicator = &rank.communicator;
      call.nodes = &nodes;
      call.segment_bytes = 2048;
      co_await ops::allreduce_between_nodes(call);
      const std::lock_guard lock(mutex);
      total.sent += rank.communicator.bytes_sent();
      total.moved += rank.nodes->window->bytes_moved();
    });
    return total;
  }
};

INSTANTIATE_TEST_SUITE_P(, BetweenNodesTest,
                         testing::Values(Layout{0, 1}, Layout{0, 0, 1}, Layout{0, 1, 1},
                                         Layout{0, 0, 1, 1}, Layout{0, 1, 1, 0},
                                         Layout{0, 1, 2, 0, 2}, Layout{0, 0, 0, 1, 1, 0, 1}));

double value_of(std::size_t rank, std::size_t i) {
  return static_cast<double>((i * 3 + rank * 5) % 11) + static_cast<double>(rank);
}

template <class Element>
std::byte* bytes_of(std::vector<Element>& values) {
  return reinterpret_cast<std::byte*>(values.data());
}

template <class Element>
std::vector<std::vector<Element>> inputs_of(std::size_t ranks, std::size_t count) {
  std::vector<std::vector<Element>> inputs(ranks, std::vector<Element>(count));
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    for (std::size_t i = 0; i < count; ++i) {
      inputs[rank][i] = static_cast<Element>(value_of(rank, i));
    }
  }
  return inputs;
}

/// Lossless payloads: all elements of a top-k, or small whole numbers in half precision.
TEST_P(BetweenNodesTest, LosslessPayloads_GiveExactSums) {
  const std::unique_ptr<const Codec> all = compression::top_k("top_k:1", 1.0);
  for (const std::size_t count : {std::size_t{1}, std::size_t{37}, std::size_t{5003}}) {
    for (const int variant : {0, 1, 2, 3}) {
      const bool has_codec = variant % 2 == 0;
      auto buffers = inputs_of<float>(ranks(), count);
      run(/*has_windows=*/variant < 2, [&](std::size_t rank) {
        return CollectiveCall{.input = bytes_of(buffers[rank]),
                              .output = bytes_of(buffers[rank]),
                              .count = count,
                              .reduction = {ReduceOp::Sum, 2.0, 0.25},
                              .compressor = has_codec ? nullptr : &compression::fp16(),
                              .codec = has_codec ? all.get() : nullptr};
      });
      for (std::size_t rank = 0; rank < ranks(); ++rank) {
        for (std::size_t i = 0; i < count; ++i) {
          double sum = 0;
          for (std::size_t other = 0; other < ranks(); ++other) sum += value_of(other, i);
          ASSERT_EQ(buffers[rank][i], static_cast<float>(0.5 * sum))
              << "rank " << rank << ", element " << i << " of " << count << ", " << variant;
        }
      }
    }
  }
}

TEST_P(BetweenNodesTest, OutOfPlace_InputsStay) {
  constexpr std::size_t kCount = 1501;
  const std::unique_ptr<const Codec> all = compression::top_k("top_k:1", 1.0);
  auto inputs = inputs_of<double>(ranks(), kCount);
  const auto given = inputs;
  std::vector<std::vector<double>> outputs(ranks(), std::vector<double>(kCount));
  for (const bool has_windows : {true, false}) {
    run(has_windows, [&](std::size_t rank) -> CollectiveCall {
      return {.input = bytes_of(inputs[rank]),
              .output = bytes_of(outputs[rank]),
              .count = kCount,
              .dtype = DType::Float64,
              .codec = all.get()};
    });
    EXPECT_EQ(inputs, given);
    for (std::size_t i = 0; i < kCount; ++i) {
      double sum = 0;
      for (std::size_t rank = 0; rank < ranks(); ++rank) sum += value_of(rank, i);
      for (const auto& output : outputs) ASSERT_EQ(output[i], sum) << i;
    }
  }
}

/// Only messages between nodes are encoded: each rank at a place sends two blocks of 256 elements
/// to every other one, twice. Nodes use float32 internally.
TEST_P(BetweenNodesTest, BytesEqualTheFormula) {
  const std::size_t count = places() * nodes() * 512;
  std::uint64_t inside = 0;
  for (int node = 0; node < static_cast<int>(nodes()); ++node) {
    inside += 2 * (ranks_of(node) - 1) * count * sizeof(float);
  }
  const std::uint64_t messages = places() * nodes() * (nodes() - 1) * 2;
  for (const bool has_windows : {true, false}) {
    for (const bool has_codec : {true, false}) {
      auto buffers = inputs_of<float>(ranks(), count);
      const Traffic traffic = run(has_windows, [&](std::size_t rank) -> CollectiveCall {
        return {.input = bytes_of(buffers[rank]),
                .output = bytes_of(buffers[rank]),
                .count = count,
                .compressor = has_codec ? nullptr : &compression::fp16(),
                .codec = has_codec ? &compression::int8() : nullptr};
      });
      const std::uint64_t between = messages * (has_codec ? 2 * 260 : 512 * 2);
      EXPECT_EQ(traffic.sent, between + (has_windows ? 0 : inside)) << has_codec;
      EXPECT_EQ(traffic.moved, has_windows ? inside : 0) << has_codec;
    }
  }
}

/// The results of all steps plus the residuals of the pieces are the sum of all inputs.
TEST_P(BetweenNodesTest, ErrorFeedback_LosesNothing_AndBitsAreEqual) {
  constexpr std::size_t kCount = 5003;
  const std::unique_ptr<const Codec> few = compression::top_k("top_k:0.05", 0.05);
  for (const Codec* const codec : {&compression::int8(), &compression::one_bit(), few.get()}) {
    std::vector<std::vector<float>> residuals;
    std::vector<ops::Range> pieces;
    for (std::size_t rank = 0; rank < ranks(); ++rank) {
      const ops::NodePlaces places(GetParam(), static_cast<int>(rank));
      pieces.push_back(places.own_piece(kCount));
      residuals.emplace_back(pieces.back().length);
    }
    std::vector<double> given(kCount);
    std::vector<double> applied(kCount);
    for (int step = 0; step < 5; ++step) {
      std::vector<std::vector<float>> buffers(ranks(), std::vector<float>(kCount));
      for (std::size_t rank = 0; rank < ranks(); ++rank) {
        for (std::size_t i = 0; i < kCount; ++i) {
          buffers[rank][i] =
              std::cos(static_cast<float>((i + 1) * (rank + 2)) + static_cast<float>(step));
          given[i] += buffers[rank][i];
        }
      }
      run(/*has_windows=*/step % 2 == 0, [&](std::size_t rank) -> CollectiveCall {
        return {.input = bytes_of(buffers[rank]),
                .output = bytes_of(buffers[rank]),
                .count = kCount,
                .codec = codec,
                .residual = residuals[rank].data()};
      });
      for (const auto& buffer : buffers) {
        ASSERT_EQ(buffer, buffers[0]);
      }
      for (std::size_t i = 0; i < kCount; ++i) applied[i] += buffers[0][i];
    }
    double largest = 0;
    for (std::size_t rank = 0; rank < ranks(); ++rank) {
      for (std::size_t i = 0; i < pieces[rank].length; ++i) {
        applied[pieces[rank].begin + i] += residuals[rank][i];
        largest = std::max(largest, std::fabs(static_cast<double>(residuals[rank][i])));
      }
    }
    EXPECT_GT(largest, 1e-3) << codec->name();
    for (std::size_t i = 0; i < kCount; ++i) {
      ASSERT_NEAR(applied[i], given[i], 1e-3) << codec->name() << ", element " << i;
    }
  }
}

TEST_P(BetweenNodesTest, PiecesOfANode_AreTheBuffer) {
  for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{1000}}) {
    std::vector<std::size_t> covered(nodes());
    for (std::size_t rank = 0; rank < ranks(); ++rank) {
      const ops::NodePlaces places(GetParam(), static_cast<int>(rank));
      const ops::Range piece = places.own_piece(count);
      auto& end = covered[static_cast<std::size_t>(places.node())];
      EXPECT_EQ(piece.begin, end);
      end += piece.length;
      EXPECT_EQ(places.has_piece(), static_cast<std::uint64_t>(places.place()) < this->places());
      if (!places.has_piece()) {
        EXPECT_EQ(piece.length, 0U);
      }
    }
    EXPECT_EQ(covered, std::vector<std::size_t>(nodes(), count));
  }
}

}  // namespace kolo::test::between_nodes_test
