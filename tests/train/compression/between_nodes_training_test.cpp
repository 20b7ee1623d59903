// Training with compression_scope = BetweenNodes: results, residuals, bytes, checkpoints,
// refused options. Runs on one node, and on two with equally many ranks or not.
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/error.hpp"
#include "kolo/extras/power_sgd.hpp"
#include "kolo/torch/grad_scaler.hpp"
#include "support/mpi/variants.hpp"
#include "train/compression/coded_training.hpp"
#include "train/scaling.hpp"

namespace kolo::test::compression_test {

const AlsoIn also_in({"nodes"});

constexpr std::uint64_t kBlock = 16384;  // elements that top_k encodes at once

class BetweenNodesTrainingTest : public CompressionTest {
 protected:
  static DistributedOptimizer::Options between_nodes(const Compression& compression,
                                                     ReduceOp op = ReduceOp::Sum) {
    return {.op = op,
            .compression = compression,
            .compression_scope = CompressionScope::BetweenNodes,
            .shard = Shard::None};
  }
  bool has_nodes() const { return size() > runtime_.local_size(); }
  bool has_equal_nodes() const { return has_nodes() && runtime_.is_homogeneous(); }
  /// Ranks of each node that encode: the size of the smaller node, or all ranks of a single node.
  std::int64_t places() const { return has_nodes() ? size() / 2 : size(); }
};
INSTANTIATE_TEST_SUITE_P(, BetweenNodesTrainingTest, testing::Values(Shard::None),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_P(BetweenNodesTrainingTest, AppliedAndResidual_AddUpToTheGradients) {
  for (const Compression& compression : all_codecs()) {
    for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Average}) {
      LinearTraining training(between_nodes(compression, op));
      training.run(0, 4);
      const std::vector<at::Tensor> residual_sums = training.residual_sums(folder_.path());
      training.expect_balance(residual_sums, std::string(compression.name()));
      EXPECT_EQ(LinearTraining::largest(residual_sums) > 1e-3, has_nodes()) << compression.name();
      const TrainingReport report = training.optimizer().report();
      EXPECT_EQ(report.now.residuals, report.expected.residuals);
    }
  }
}

/// Each encoding rank has two blocks for each node. Ranks have residuals only for their pieces.
TEST_P(BetweenNodesTrainingTest, BytesAndMemory_AreThoseOfPieces) {
  const std::uint64_t nodes = has_nodes() ? 2 : 1;
  const auto pieces = static_cast<std::uint64_t>(places());
  const std::uint64_t elements = nodes * pieces * 2 * kBlock;
  const auto neighbours = static_cast<std::uint64_t>(runtime_.local_size());
  const bool encodes = static_cast<std::uint64_t>(runtime_.local_rank()) < pieces;
  const std::uint64_t inside = 2 * (elements * 4) * (neighbours - 1) / neighbours;
  const std::uint64_t kept = 820;  // a twentieth of a block, rounded up
  for (const bool is_int8 : {true, false}) {
    const Compression compression = is_int8 ? Compression::int8() : Compression::top_k(0.05);
    LinearTraining training(between_nodes(compression), {{static_cast<std::int64_t>(elements)}});
    training.run(0, 3);
    const std::uint64_t own = 2 * (is_int8 ? kBlock / 256 * 260 : kept * 6);
    const std::uint64_t sum = is_int8 ? own : own * nodes;
    const std::uint64_t coded = encodes ? (nodes - 1) * (own + sum) : 0;
    const TrainingReport report = training.optimizer().report();
    EXPECT_EQ(report.expected_sent_per_step, coded + inside);
    // Not in the formula: the flags of one bucket. With three ranks, pieces are multiples of 16.
    EXPECT_GE(report.sent_per_step + 1000, coded + inside);
    EXPECT_LE(report.sent_per_step, coded + inside + 1000 * static_cast<std::uint64_t>(size()));
    EXPECT_NEAR(static_cast<double>(report.now.residuals),
                encodes ? static_cast<double>(8 * elements / pieces) : 0.0, 8 * 16);
    EXPECT_EQ(report.now.residuals, report.expected.residuals);
  }
}

TEST_P(BetweenNodesTrainingTest, StepsThatAreNotUsed_LeaveTheResidual) {
  LinearTraining training(between_nodes(Compression::top_k(0.05)));
  GradScaler scaler({.init_scale = 256.0, .growth_interval = 2});
  for (int step = 0; step < 6; ++step) {
    const bool overflows = step == 0 || step == 3;
    training.optimizer().zero_grad();
    training.backward(step + 7, 100.0);  // dropped
    training.optimizer().zero_grad();
    at::Tensor loss = training.loss(step);
    if (overflows && is_last()) loss = loss + training.parameters()[3][7] * kInfinity;
    scaler.scale(loss).backward();
    EXPECT_EQ(scaler.step(training.optimizer()), !overflows);
    scaler.update();
    if (!overflows) training.count(step);
  }
  training.expect_balance(training.residual_sums(folder_.path()), "scaled", scaler.get_scale());
}

/// To and from codecs that encode between all ranks, and those of shards within nodes.
TEST_P(BetweenNodesTrainingTest, Checkpoints_AreTakenOver) {
  std::vector<DistributedOptimizer::Options> kinds{between_nodes(Compression::top_k(0.05)),
                                                   summed(Compression::top_k(0.05))};
  if (has_equal_nodes()) {
    for (const Shard shard : sharded_modes()) {
      kinds.push_back(between_nodes(Compression::top_k(0.05)));
      kinds.back().shard = shard;
      kinds.back().shard_scope = ShardScope::Node;
    }
  }
  for (std::size_t from = 0; from < 2; ++from) {
    LinearTraining before(kinds[from]);
    before.run(0, 3);
    before.optimizer().save(folder_.path() / "common");
    for (std::size_t to = 0; to < kinds.size(); ++to) {
      LinearTraining after(kinds[to]);
      after.optimizer().load(folder_.path() / "common");
      after.set_given(before.given());
      after.expect_balance(after.residual_sums(folder_.path()), "loaded");
      after.run(3, 5);
      after.expect_balance(after.residual_sums(folder_.path()),
                           std::to_string(from) + " to " + std::to_string(to));
    }
  }
}

/// Ranks of one node encode nothing, and apply the saved residuals of several nodes in one step.
TEST_P(BetweenNodesTrainingTest, FewerNodes_ApplyTheResidual) {
  for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Average}) {
    LinearTraining before(between_nodes(Compression::top_k(0.3), op));
    before.run(0, 3);
    before.optimizer().save(folder_.path());
    for (int ranks = 1; ranks < size(); ++ranks) {
      ProcessSet& set = sets_.first(ranks);
      if (set.included()) {
        LinearTraining after(between_nodes(Compression::top_k(0.3), op), LinearTraining::shapes(),
                             set);
        after.optimizer().load(folder_.path());
        after.run_idle(9);
        after.expect_applied(before.given(), op == ReduceOp::Average ? size() : 1,
                             "to " + std::to_string(ranks));
      }
      barrier();
    }
  }
}

/// The first node's sum is exact in bfloat16, but its ranks' terms are not.
TEST_P(BetweenNodesTrainingTest, Casts_AreForSumsOfNodes) {
  if (!has_equal_nodes() || size() < 4) GTEST_SKIP() << "needs nodes of two ranks that add up";
  std::vector<DistributedOptimizer::Options> kinds{between_nodes(Compression::bf16())};
  for (const Shard shard : sharded_modes()) {
    kinds.push_back(between_nodes(Compression::bf16()));
    kinds.back().shard = shard;
    kinds.back().shard_scope = ShardScope::Node;
  }
  for (const DistributedOptimizer::Options& options : kinds) {
    const at::Tensor parameter = torch::zeros({300}, torch::requires_grad());
    torch::optim::SGD inner({parameter}, 1.0);
    DistributedOptimizer optimizer(inner, {{"p", parameter}}, options);
    const double slope = rank() == 0 ? 257.0 : rank() == 1 ? -255.5 : is_last() ? -1.0 : 0.0;
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      (parameter * slope).sum().backward();
      optimizer.step();
    }
    EXPECT_TRUE(torch::equal(parameter.detach(), torch::full({300}, -1.5)))
        << name_of(*options.shard) << parameter.detach()[0];
  }
}

/// The hook keeps residuals of all elements, and loads those that codecs kept for pieces.
TEST_P(BetweenNodesTrainingTest, AHookWithErrorFeedback_TakesOver) {
  LinearTraining training(between_nodes(Compression::top_k(0.05), ReduceOp::Average),
                          {{40, 30}, {20, 50}});
  training.run(0, 2);
  PowerSgd power_sgd({.rank = 1, .start_step = 0});
  training.optimizer().register_bucket_hook(power_sgd.hook());
  training.run(2, 4);
  training.expect_balance(training.residual_sums(folder_.path()), "with a hook");
}

/// Joined ranks lose encoding errors of their node's sums, so those of a node join together, and of
/// all nodes' sums, which int8 encodes.
TEST_P(BetweenNodesTrainingTest, RanksThatJoin_LetTheOthersTrainOn) {
  const auto steps_of = [&](int rank) { return 5 - (size() < 4 ? rank : rank / 2); };
  for (const Compression& compression : {Compression::int8(), Compression::top_k(0.05)}) {
    LinearTraining training(between_nodes(compression, ReduceOp::Average));
    for (int step = 0; step < steps_of(rank()); ++step) {
      training.optimizer().zero_grad();
      training.backward(step);
      training.optimizer().step();
    }
    training.optimizer().join();
    training.run(6, 8);
    EXPECT_NO_THROW(training.optimizer().check_replicas());
    if (compression.name() == Compression::int8().name()) continue;
    for (int r = 0; r < size(); ++r) {
      for (int step = 0; step < steps_of(r); ++step) training.count_of(step, r);
    }
    training.expect_balance(training.residual_sums(folder_.path()), "after a join");
  }
}

TEST_P(BetweenNodesTrainingTest, UnsuitableOptions_AreRefusedOnAllRanks) {
  const auto text_of = [&](const DistributedOptimizer::Options& options) {
    return text_thrown_by<Error>([&] { const LinearTraining training(options); });
  };
  for (const Shard shard : sharded_modes()) {
    for (const Compression& compression : {Compression::int8(), Compression::fp16()}) {
      DistributedOptimizer::Options options = between_nodes(compression);
      options.shard = shard;
      const std::string text = text_of(options);
      expect_contains(text, "shard = " + std::string(name_of(shard)) + " with shard_scope = World");
      expect_contains(text, "Use shard_scope = Node");
    }
  }
  expect_contains(text_of(between_nodes(Compression::fp16(), ReduceOp::Adasum)),
                  "BetweenNodes is for Average and Sum, not Adasum");
  if (size() == 1) GTEST_SKIP() << "the rest: one rank differs from nobody";
  DistributedOptimizer::Options options = between_nodes(Compression::int8());
  if (is_last()) options.compression_scope = CompressionScope::Everywhere;
  const std::string text = text_of(options);
  expect_contains(text, "compression_scope is");
  expect_contains(text, "everywhere");
  expect_contains(text, "between nodes");
}

}  // namespace kolo::test::compression_test
