// Error feedback: what a codec loses of gradients arrives later, in every shard mode, whether a
// step is used, skipped or dropped.
#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/torch/grad_scaler.hpp"
#include "support/mpi/variants.hpp"
#include "train/compression/coded_training.hpp"
#include "train/scaling.hpp"

namespace kolo::test::compression_test {

const AlsoIn error_feedback_in({"alone", "uneven", "messages", "nodes"});

class ErrorFeedbackTest : public CompressionTest {};
INSTANTIATE_TEST_SUITE_P(, ErrorFeedbackTest, testing::ValuesIn(all_modes()),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_P(ErrorFeedbackTest, AppliedAndResidual_AddUpToTheGradients) {
  for (const Compression& compression : all_codecs()) {
    LinearTraining training(summed(compression));
    training.run(0, 4);
    const std::vector<at::Tensor> residual_sums = training.residual_sums(folder_.path());
    training.expect_balance(residual_sums, std::string(compression.name()));
    if (is_coded()) {
      EXPECT_GT(LinearTraining::largest(residual_sums), 1e-3) << compression.name();
    }
  }
}

TEST_P(ErrorFeedbackTest, Residual_IsAppliedInStepsWithoutGradients) {
  LinearTraining training(summed(Compression::top_k(0.3)));
  training.run(0, 3);
  training.run_idle(9);
  training.expect_applied(training.given(), 1, "after nine steps");
}

TEST_P(ErrorFeedbackTest, AveragesAndPasses_LoseNothing) {
  for (const Accumulation accumulation : {Accumulation::Local, Accumulation::Reduced}) {
    if (accumulation == Accumulation::Reduced && GetParam() < Shard::Gradients) continue;
    LinearTraining training({.gradient_predivide_factor = 4.0,
                             .backward_passes_per_step = 2,
                             .accumulation = accumulation,
                             .compression = Compression::top_k(0.05),
                             .shard = GetParam()});
    for (int step = 0; step < 3; ++step) {
      training.optimizer().zero_grad();
      for (const int pass : {2 * step, 2 * step + 1}) {
        training.backward(pass);
        training.count(pass);
      }
      training.optimizer().step();
    }
    training.expect_balance(training.residual_sums(folder_.path()), "two passes");
  }
}

TEST_P(ErrorFeedbackTest, DiscardedGradients_LeaveTheResidual) {
  LinearTraining training(summed(Compression::top_k(0.05)));
  const auto discard = [&](int step) {
    training.optimizer().zero_grad();
    training.backward(step, 100.0);
    training.optimizer().zero_grad();
  };
  discard(7);
  training.run(0, 2);
  discard(8);
  training.run(2, 3);
  training.optimizer().zero_grad();
  training.backward(9, 100.0);
  training.optimizer().synchronize();
  discard(10);
  training.expect_balance(training.residual_sums(folder_.path()), "after discarded gradients");
}

TEST_P(ErrorFeedbackTest, SkippedStepsAndOtherScales_LeaveTheResidual) {
  for (const Compression& compression : {Compression::int8(), Compression::top_k(0.05)}) {
    LinearTraining training(summed(compression));
    GradScaler scaler({.init_scale = 256.0, .growth_interval = 2});
    for (int step = 0; step < 6; ++step) {
      const bool overflows = step == 0 || step == 3;  // in one bucket of several, on one rank
      training.optimizer().zero_grad();
      at::Tensor loss = training.loss(step);
      if (overflows && is_last()) loss = loss + training.parameters()[3][7] * kInfinity;
      scaler.scale(loss).backward();
      EXPECT_EQ(scaler.step(training.optimizer()), !overflows);
      scaler.update();
      if (!overflows) training.count(step);
    }
    EXPECT_NE(scaler.get_scale(), 256.0 / 4);  // the scale has grown, too
    training.expect_balance(training.residual_sums(folder_.path()), "scaled", scaler.get_scale());
  }
}

/// The first step's losses are divided by 1, later ones by one rank's count.
TEST_P(ErrorFeedbackTest, CountedLosses_HaveTheResidualsOfTheirSums) {
  for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Average}) {
    DistributedOptimizer::Options options = summed(Compression::top_k(0.05));
    options.op = op;
    LinearTraining training(options);
    training.run_counted(0, 4);
    training.expect_balance(training.residual_sums(folder_.path()), "counted",
                            op == ReduceOp::Average ? 1 : size());
  }
}

TEST_P(ErrorFeedbackTest, AddedParameters_TakePart) {
  LinearTraining training(summed(Compression::one_bit()));
  training.run(0, 2);
  training.add_late_parameter();
  training.run(2, 4);
  training.expect_balance(training.residual_sums(folder_.path()), "with an added parameter");
}

/// Joined ranks send zeros, and keep their residuals until they train again. Without shards, the
/// parameters are small enough to be a piece of the first rank, which trains longest: the encoding
/// error of a sum is lost if the piece's rank has joined.
TEST_P(ErrorFeedbackTest, RanksThatJoin_KeepTheirResidualUntilTheyTrainOn) {
  const Shapes small{{300}, {17}};
  const Shapes large{{40003}, {17}};
  for (const bool joins_at_once : {false, true}) {
    DistributedOptimizer::Options options = summed(Compression::top_k(0.05));
    if (joins_at_once) options.op = ReduceOp::Average;
    LinearTraining training(options, GetParam() == Shard::None ? small : large);
    const auto steps_of = [&](int rank) {
      return joins_at_once && rank == size() - 1 && rank > 0 ? 0 : std::max(5 - rank, 1);
    };
    for (int step = 0; step < steps_of(rank()); ++step) {
      training.optimizer().zero_grad();
      training.backward(step);
      training.optimizer().step();
    }
    for (int r = 0; r < size(); ++r) {
      for (int step = 0; step < steps_of(r); ++step) training.count_of(step, r);
    }
    training.optimizer().join();
    training.expect_balance(training.residual_sums(folder_.path()), "after a join");
    training.run(6, 8);
    training.expect_balance(training.residual_sums(folder_.path()), "after further steps");
  }
}

class NodeFeedbackTest : public CompressionTest {};
INSTANTIATE_TEST_SUITE_P(, NodeFeedbackTest, testing::ValuesIn(sharded_modes()),
                         [](const auto& test) { return std::string(name_of(test.param)); });

/// With shards within nodes, data between nodes is encoded.
TEST_P(NodeFeedbackTest, ShardsOfANode_KeepResidualsForTheirReplicas) {
  for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Average}) {
    DistributedOptimizer::Options options = summed(Compression::top_k(0.05));
    options.op = op;
    options.shard_scope = ShardScope::Node;
    LinearTraining training(options);
    training.run(0, 4);
    const std::vector<at::Tensor> residual_sums = training.residual_sums(folder_.path());
    training.expect_balance(residual_sums, "between nodes");
    const TrainingReport report = training.optimizer().report();
    EXPECT_EQ(report.now.residuals, report.expected.residuals);
    EXPECT_EQ(LinearTraining::largest(residual_sums) > 1e-3, is_coded(ShardScope::Node));
  }
}

TEST_P(ErrorFeedbackTest, WithoutIt_NothingIsKept) {
  DistributedOptimizer::Options options = summed(Compression::top_k(0.05));
  options.error_feedback = false;
  LinearTraining training(options);
  training.run(0, 2);
  EXPECT_EQ(LinearTraining::largest(training.residual_sums(folder_.path())), 0);
  EXPECT_EQ(training.optimizer().report().now.residuals, 0U);
  std::vector<at::Tensor> missing = training.given();
  for (std::size_t i = 0; i < missing.size(); ++i) {
    missing[i] += training.parameters()[i].detach().to(torch::kFloat64);
  }
  EXPECT_EQ(LinearTraining::largest(missing) > 0.1, is_coded());
}

}  // namespace kolo::test::compression_test
