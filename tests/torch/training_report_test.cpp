// What an optimizer says that it keeps and moves.
#include "kolo/training_report.hpp"

#include <cstdint>
#include <sstream>
#include <string>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "torch/sharding.hpp"

namespace kolo::test::training_report_test {

constexpr std::int64_t kWidth = 160;
constexpr int kLayers = 12;

TrainingReport report_of(Shard shard, DistributedOptimizer::Options options, int steps,
                         std::string* text = nullptr) {
  torch::nn::Sequential model = make_mlp(torch::kFloat32, kWidth, kLayers);
  torch::optim::Adam inner(model->parameters(), 1e-3);
  options.shard = shard;
  DistributedOptimizer optimizer(inner, *model, options);
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    for (int pass = 0; pass < options.backward_passes_per_step; ++pass) {
      loss_of(model, batch_rows(step, 0, 2, kWidth, torch::kFloat32)).backward();
    }
    optimizer.step();
  }
  const TrainingReport report = optimizer.report();
  if (text != nullptr) {
    std::ostringstream stream;
    stream << report;
    *text = stream.str();
  }
  return report;
}

/// Within padding: every part of a bucket ends at a multiple of 64 bytes.
void expect_near(std::size_t bytes, std::size_t expected) {
  EXPECT_NEAR(static_cast<double>(bytes), static_cast<double>(expected),
              0.01 * static_cast<double>(expected) + 64 * 100);
}

TEST_F(ShardedOptimizerTest, ReportsWhatItKeepsBesideTheFormulas) {
  const auto parameters =
      static_cast<std::size_t>(kLayers * (kWidth * kWidth + kWidth) + 3 * kWidth + 3) * 4;
  const auto ranks = static_cast<std::size_t>(runtime_.size());
  for (const Shard shard : {Shard::None, Shard::Optimizer, Shard::Gradients}) {
    std::string text;
    const TrainingReport report = report_of(shard, {}, 3, &text);
    const std::size_t sharers = shard == Shard::None ? 1 : ranks;
    const std::size_t gradients = shard == Shard::Gradients ? parameters / ranks : parameters;
    EXPECT_EQ(report.shard, shard);
    EXPECT_EQ(report.now.parameters, parameters);
    expect_near(report.now.gradients, gradients);
    expect_near(report.now.optimizer_state, 2 * parameters / sharers);
    if (shard == Shard::Gradients) {
      EXPECT_GT(report.now.buckets, 0U);
      EXPECT_LT(report.now.buckets, parameters / 3);
    } else {
      EXPECT_EQ(report.now.buckets, 0U);
    }
    expect_near(report.now.gradients, report.expected.gradients);
    expect_near(report.now.optimizer_state, report.expected.optimizer_state);
    EXPECT_EQ(report.now.parameters, report.expected.parameters);
    EXPECT_EQ(report.expected_sent_per_step, 2 * (parameters * (ranks - 1) / ranks));
    if (is_rank_ordered()) {
      expect_near(report.sent_per_step, report.expected_sent_per_step);
    }
    EXPECT_GE(report.peak_resident, report.peak_at_construction);
    EXPECT_GT(report.peak_at_construction, parameters);
    EXPECT_NE(text.find(std::string(name_of(shard))), std::string::npos) << text;
    EXPECT_NE(text.find("optimizer state"), std::string::npos) << text;
  }
}

TEST_F(ShardedOptimizerTest, ReducingEveryPassMovesMore) {
  DistributedOptimizer::Options options;
  options.backward_passes_per_step = 3;
  options.accumulation = Accumulation::Reduced;
  const TrainingReport report = report_of(Shard::Gradients, options, 3);
  const auto ranks = static_cast<std::size_t>(runtime_.size());
  EXPECT_EQ(report.expected_sent_per_step, 4 * (report.now.parameters * (ranks - 1) / ranks));
  if (is_rank_ordered()) expect_near(report.sent_per_step, report.expected_sent_per_step);
}

TEST_F(ShardedOptimizerTest, ReportsBeforeTheFirstStep) {
  const TrainingReport report = report_of(Shard::Gradients, {}, 0);
  EXPECT_EQ(report.now.optimizer_state, 0U);
  EXPECT_EQ(report.sent_per_step, 0U);
}

}  // namespace kolo::test::training_report_test
