// An optimizer's report of the bytes that it keeps and moves.
#include "kolo/torch/training_report.hpp"

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/collectives.hpp"
#include "kolo/insight.hpp"
#include "support/mpi/variants.hpp"
#include "train/sharding.hpp"

namespace kolo::test::training_report_test {

const AlsoIn also_in({"uneven", "messages", "nodes"});

constexpr std::int64_t kWidth = 160;
constexpr int kLayers = 12;

TrainingReport report_of(Shard shard, DistributedOptimizer::Options options, int steps) {
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
  return optimizer.report();
}

/// Equal but for padding: every shard of a bucket ends at a multiple of 64 bytes, with Shard::Full
/// at a page boundary.
void expect_near(std::size_t bytes, std::size_t expected, double padding = 64 * 100) {
  EXPECT_NEAR(static_cast<double>(bytes), static_cast<double>(expected),
              0.01 * static_cast<double>(expected) + padding);
}

/// The bytes that a rank sends in a gather: its block, to every copy but its own.
std::size_t bytes_per_gather(std::size_t parameters, Shard shard) {
  const Runtime& runtime = Runtime::current();
  const bool is_per_node = shard == Shard::Full && share_gathered_units();
  const auto copies = static_cast<std::size_t>(is_per_node ? runtime.cross_size() : runtime.size());
  const auto ranks_per_copy = static_cast<std::size_t>(runtime.size()) / copies;
  return parameters / ranks_per_copy * (copies - 1) / copies;
}

TEST_F(ShardedOptimizerTest, Report_ShowsWhatIsKeptBesideTheFormulas) {
  const auto parameters =
      static_cast<std::size_t>(kLayers * (kWidth * kWidth + kWidth) + 3 * kWidth + 3) * 4;
  const auto ranks = static_cast<std::size_t>(runtime_.size());
  for (const Shard shard : all_modes()) {
    const TrainingReport report = report_of(shard, {}, 3);
    const std::size_t sharers = shard == Shard::None ? 1 : ranks;
    const std::size_t gradients = shard >= Shard::Gradients ? parameters / ranks : parameters;
    const double padding = shard == Shard::Full ? 40 * 4096 : 64 * 100;
    EXPECT_EQ(report.shard, shard);
    expect_near(report.now.parameters, shard == Shard::Full ? parameters / ranks : parameters,
                padding);
    expect_near(report.now.gradients, gradients, padding);
    expect_near(report.now.optimizer_state, 2 * parameters / sharers, 2 * padding);
    if (shard >= Shard::Gradients) {
      EXPECT_GT(report.now.buckets, 0U);
      EXPECT_LT(report.now.buckets, shard == Shard::Full ? parameters : parameters / 3);
    } else {
      EXPECT_EQ(report.now.buckets, 0U);
    }
    expect_near(report.now.gradients, report.expected.gradients, padding);
    expect_near(report.now.optimizer_state, report.expected.optimizer_state, 2 * padding);
    expect_near(report.now.parameters, report.expected.parameters, padding);
    const std::size_t gathers = shard != Shard::Full ? 1 : gathers_on_use() ? 2 : 0;
    EXPECT_EQ(report.expected_sent_per_step,
              parameters * (ranks - 1) / ranks + gathers * bytes_per_gather(parameters, shard));
    if (is_rank_ordered()) {
      expect_near(report.sent_per_step, report.expected_sent_per_step, padding * 4);
    }
  }
}

TEST_F(ShardedOptimizerTest, ReducingEveryPass_MovesMore) {
  DistributedOptimizer::Options options;
  options.backward_passes_per_step = 3;
  options.accumulation = Accumulation::Reduced;
  const TrainingReport report = report_of(Shard::Gradients, options, 3);
  const auto ranks = static_cast<std::size_t>(runtime_.size());
  EXPECT_EQ(report.expected_sent_per_step, 4 * (report.now.parameters * (ranks - 1) / ranks));
  if (is_rank_ordered()) expect_near(report.sent_per_step, report.expected_sent_per_step);
}

TEST_F(ShardedOptimizerTest, Report_PredictsBeforeTheFirstStep) {
  const TrainingReport report = report_of(Shard::Gradients, {}, 0);
  EXPECT_EQ(report.now.optimizer_state, 0U);
  EXPECT_EQ(report.sent_per_step, 0U);
}

/// This process's resident bytes, now and at most.
struct Resident {
  std::size_t now = 0;
  std::size_t most = 0;
};
Resident resident() {
  Resident resident;
  std::ifstream status("/proc/self/status");
  for (std::string key, rest; status >> key && std::getline(status, rest);) {
    if (key == "VmRSS:") resident.now = std::stoul(rest) * 1024;
    if (key == "VmHWM:") resident.most = std::stoul(rest) * 1024;
  }
  return resident;
}

TEST_F(ShardedOptimizerTest, Report_ShowsThePeaksOfTheProcess) {
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  constexpr auto kUncertain = static_cast<double>(4 * kMiB);  // threads count pages in batches
  torch::nn::Sequential model = make_mlp(torch::kFloat32);
  torch::optim::SGD inner(model->parameters(), 0.1);
  const DistributedOptimizer optimizer(inner, *model);
  const Resident before = resident();
  // The system may evict pages of libraries meanwhile, so one block may not suffice.
  std::vector<std::vector<char>> more;
  Resident after = before;
  while (after.most <= before.most + 16 * kMiB && more.size() < 32) {
    more.emplace_back(64 * kMiB, 'x');
    after = resident();
  }
  ASSERT_GT(after.most, before.most + 16 * kMiB);
  const TrainingReport report = optimizer.report();
  EXPECT_NEAR(static_cast<double>(report.peak_at_construction), static_cast<double>(before.most),
              kUncertain);
  EXPECT_NEAR(static_cast<double>(report.peak_resident), static_cast<double>(after.most),
              kUncertain);
}

TEST_F(ShardedOptimizerTest, Report_ShowsTheWaitsOfTheLastStep) {
  torch::nn::Sequential model = make_mlp(torch::kFloat32);
  torch::optim::SGD inner(model->parameters(), 0.1);
  DistributedOptimizer optimizer(inner, *model);
  const std::uint64_t steps_before = metrics().steps;
  double before = 0.0;
  for (int step = 0; step < 3; ++step) {
    before = metrics().blocked_seconds;
    for (int i = 0; i <= 5 * step; ++i) barrier();  // nothing hides it
    loss_of(model, batch_rows(step, 0, 2, 9, torch::kFloat32)).backward();
    optimizer.step();
  }
  const double waits = metrics().blocked_seconds - before;
  EXPECT_GT(waits, 0.0);
  EXPECT_NEAR(optimizer.report().exposed_seconds_per_step, waits, 1e-9);
  EXPECT_EQ(metrics().steps - steps_before, 3U);
}

TEST(TrainingReportTest, Report_IsPrintedRowByRow) {
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  TrainingReport report;
  report.shard = Shard::Gradients;
  report.ranks = 8;
  report.sharers = 4;
  report.now = {.parameters = 1 * kMiB,
                .gradients = 2 * kMiB,
                .optimizer_state = 4 * kMiB,
                .buckets = 8 * kMiB};
  report.expected = {.parameters = 16 * kMiB,
                     .gradients = 32 * kMiB,
                     .optimizer_state = 64 * kMiB,
                     .buckets = 128 * kMiB};
  report.sent_per_step = 3 * kMiB;
  report.expected_sent_per_step = 5 * kMiB / 2;
  report.peak_resident = 7 * kMiB;
  report.peak_at_construction = 6 * kMiB;
  report.gpu_seconds_per_step = 0.009;
  report.exposed_seconds_per_step = 0.0125;
  std::ostringstream text;
  text << report;
  EXPECT_EQ(text.str(),
            "shard = gradients, sharded over 4 of 8 ranks\n"
            "  MiB on this rank                 now     formula\n"
            "  parameters                      1.00       16.00\n"
            "  gradients                       2.00       32.00\n"
            "  optimizer state                 4.00       64.00\n"
            "  buckets                         8.00      128.00\n"
            "  total                          15.00      240.00\n"
            "  sent in a step                  3.00        2.50\n"
            "  process, peak                   7.00\n"
            "    at construction               6.00\n"
            "  reductions on the GPU          9.000 ms\n"
            "  exposed communication         12.500 ms\n");
}

}  // namespace kolo::test::training_report_test
