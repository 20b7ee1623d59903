// Master copies of 16-bit parameters, and gradients that are more precise than parameters.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/error.hpp"
#include "kolo/torch/grad_scaler.hpp"
#include "kolo/torch/model_dtype.hpp"
#include "support/mpi/variants.hpp"
#include "train/sharding.hpp"
#include "train/small_training.hpp"

namespace kolo::test::precision_test {

const AlsoIn also_in({"alone", "uneven", "messages", "nodes"});

class PrecisionTest : public ShardedOptimizerTest {};

constexpr std::int64_t kWidth = 9;
constexpr std::int64_t kRows = 4;

MakeOptimizer adamw() {
  return maker<torch::optim::AdamW>(torch::optim::AdamWOptions(1e-3).eps(1e-4));
}

/// A weight of ones, whose gradient the test chooses.
struct Line {
  explicit Line(at::ScalarType type) : weight(torch::ones({300}, type).set_requires_grad(true)) {}
  void add_gradient(double slope) const { (weight * slope).sum().backward(); }
  at::Tensor weight;
};

/// A weight in bfloat16 with a master copy, trained by SGD.
struct MasterLine {
  explicit MasterLine(Shard mode) : line(torch::kBFloat16), inner({line.weight}, 1e-3) {
    DistributedOptimizer::Options options = with(mode);
    options.master_weights = true;
    optimizer = std::make_unique<DistributedOptimizer>(
        inner, DistributedOptimizer::NamedParameters{{"weight", line.weight}}, options);
  }
  void step(double slope) {
    optimizer->zero_grad();
    line.add_gradient(slope);
    optimizer->step();
  }
  float value(int i) const { return line.weight[i].item<float>(); }

  Line line;
  torch::optim::SGD inner;
  std::unique_ptr<DistributedOptimizer> optimizer;
};

/// The same without Kolo: every rank computes the gradients of all ranks.
void train_masters_alone(torch::nn::Sequential& model, int ranks, int steps,
                         const std::function<at::Tensor(const at::Tensor& rows)>& loss) {
  Parameters masters;
  for (const at::Tensor& parameter : model->parameters()) {
    masters.push_back(parameter.detach().clone().to(torch::kFloat).set_requires_grad(true));
    masters.back().mutable_grad() = torch::zeros_like(masters.back());
  }
  const auto optimizer = adamw()(masters);
  for (int step = 0; step < steps; ++step) {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& master : masters) master.grad().zero_();
    for (int rank = 0; rank < ranks; ++rank) {
      model->zero_grad();
      {
        const at::AutoGradMode grad(true);
        loss(batch_rows(step, kRows * rank, kRows, kWidth, torch::kBFloat16)).backward();
      }
      for (std::size_t i = 0; i < masters.size(); ++i) {
        masters[i].mutable_grad() += model->parameters()[i].grad().to(torch::kFloat) / ranks;
      }
    }
    optimizer->step();
    for (std::size_t i = 0; i < masters.size(); ++i) {
      model->parameters()[i].copy_(masters[i].detach());
    }
  }
}

TEST_F(PrecisionTest, Masters_KeepWhatParametersRoundAway) {
  constexpr int kSteps = 8;
  for (const Shard mode : sharded_modes()) {
    MasterLine training(mode);
    for (int step = 0; step < kSteps; ++step) training.step(runtime_.rank() + 1);
    // One update alone is less than half the distance between bfloat16 numbers.
    const float expected = 1.0F - kSteps * 1e-3F * static_cast<float>(runtime_.size() + 1) / 2.0F;
    EXPECT_TRUE(torch::equal(training.line.weight.detach(),
                             torch::full({300}, expected, torch::kFloat).to(torch::kBFloat16)))
        << name_of(mode) << ": " << training.value(0) << " instead of " << expected;
  }
}

TEST_F(PrecisionTest, WritesOfTheProgram_ReplaceMasters) {
  for (const Shard mode : sharded_modes()) {
    MasterLine training(mode);
    training.step(1.0);
    training.optimizer->full_parameters([&] {
      const at::NoGradGuard no_grad;
      training.line.weight.narrow(0, 0, 100).fill_(4.0);
    });
    for (int i = 0; i < 9; ++i) training.step(1.0);
    for (const int written : {0, 99}) {
      EXPECT_EQ(training.value(written), at::BFloat16(4.0F - 9e-3F)) << name_of(mode);
    }
    EXPECT_EQ(training.value(100), at::BFloat16(1.0F - 1e-2F)) << name_of(mode);
  }
}

TEST_F(PrecisionTest, MastersOfACheckpointWithout_AreItsParameters) {
  const CommonFolder folder;
  const Line saved(torch::kBFloat16);
  torch::optim::SGD plain({saved.weight}, 1e-3);
  DistributedOptimizer without(plain, {{"weight", saved.weight}}, with(Shard::Optimizer));
  without.save(folder.path());  // saves ones
  for (const Shard mode : sharded_modes()) {
    MasterLine training(mode);
    training.step(1.0);  // parameters are still ones, masters are not
    training.optimizer->load(folder.path(), {.strict = false});
    training.step(1.0);
    EXPECT_EQ(training.value(7), 1.0F) << name_of(mode);
    training.step(1.0);
    EXPECT_EQ(training.value(7), at::BFloat16(1.0F - 2e-3F)) << name_of(mode);
  }
}

TEST_F(PrecisionTest, Gradients_AddUpAndAreReducedInReduceDtype) {
  // bfloat16 cannot represent the sum of 2^8 and 1.
  for (const Shard mode : all_modes()) {
    for (const int passes : {1, 2}) {
      const Line line(torch::kBFloat16);
      torch::optim::SGD inner({line.weight}, 1.0);
      DistributedOptimizer::Options options = with(mode);
      options.op = ReduceOp::Sum;
      options.backward_passes_per_step = passes;
      options.reduce_dtype = torch::kFloat;
      options.master_weights = mode != Shard::None;
      DistributedOptimizer optimizer(inner, {{"weight", line.weight}}, options);
      for (int step = 0; step < 2; ++step) {
        optimizer.zero_grad();
        for (int pass = 0; pass < passes; ++pass) {
          line.add_gradient(runtime_.rank() == 0 && pass == 0 ? 256.0 : 1.0);
        }
        if (mode == Shard::None) {
          optimizer.synchronize();
          EXPECT_EQ(line.weight.grad().scalar_type(), torch::kFloat);
          EXPECT_EQ(line.weight.grad()[299].item<float>(), 255 + passes * runtime_.size());
        } else {
          const double norm = optimizer.clip_grad_norm_(1e9);
          EXPECT_NEAR(norm, std::sqrt(300.0) * (255 + passes * runtime_.size()), 1e-2)
              << name_of(mode) << " with " << passes << " passes in step " << step;
        }
        optimizer.step();
      }
    }
  }
}

TEST_F(PrecisionTest, GradientsUnderNoSync_AddUpInReduceDtype) {
  for (const Shard mode : sharded_modes()) {
    const Line line(torch::kBFloat16);
    torch::optim::SGD inner({line.weight}, 1.0);
    DistributedOptimizer::Options options = with(mode);
    options.op = ReduceOp::Sum;
    options.master_weights = true;
    DistributedOptimizer optimizer(inner, {{"weight", line.weight}}, options);
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      {
        const auto guard = optimizer.no_sync();
        line.add_gradient(256.0);
      }
      line.add_gradient(1.0);
      EXPECT_NEAR(optimizer.clip_grad_norm_(1e9), std::sqrt(300.0) * 257 * runtime_.size(), 1e-1)
          << name_of(mode) << " in step " << step;
      optimizer.step();
    }
  }
}

TEST_F(PrecisionTest, Scaler_UnscalesGradientsOfMasters) {
  for (const Shard mode : sharded_modes()) {
    const Line line(torch::kHalf);
    torch::optim::SGD inner({line.weight}, 0x1p28);
    DistributedOptimizer::Options options = with(mode);
    options.master_weights = true;
    DistributedOptimizer optimizer(inner, {{"weight", line.weight}}, options);
    GradScaler scaler({.init_scale = 0x1p15});
    optimizer.zero_grad();
    scaler.scale((line.weight * 0x1p-30).sum()).backward();  // below the range of float16
    scaler.step(optimizer);
    EXPECT_EQ(line.weight[0].item<float>(), 0.75F) << name_of(mode);
    scaler.update();
  }
}

/// Linear layers in bfloat16 with norms between them, which are not converted.
torch::nn::Sequential make_mixed_model() {
  torch::manual_seed(3);
  torch::nn::Sequential model(torch::nn::Linear(kWidth, kWidth),
                              torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})),
                              torch::nn::Tanh(), torch::nn::Linear(kWidth, kWidth),
                              torch::nn::BatchNorm1d(kWidth), torch::nn::Linear(kWidth, 3));
  set_dtype(*model, torch::kBFloat16, modules_of<torch::nn::LayerNorm, torch::nn::BatchNorm1d>());
  return model;
}

at::Tensor mixed_loss(torch::nn::Sequential& model, const at::Tensor& rows) {
  return model->forward(rows).to(torch::kFloat).pow(2).mean();
}

at::Tensor flat_floats(torch::nn::Module& model) {
  Parameters parts;
  for (const at::Tensor& parameter : model.parameters()) {
    parts.push_back(parameter.detach().to(torch::kFloat).flatten());
  }
  return torch::cat(parts);
}

TEST_F(PrecisionTest, KeptModules_TrainBesideConvertedOnes_AsInOneProcess) {
  constexpr int kSteps = 6;
  torch::nn::Sequential alone = make_mixed_model();
  const at::Tensor untrained = flat_floats(*alone);
  train_masters_alone(alone, runtime_.size(), kSteps,
                      [&](const at::Tensor& rows) { return mixed_loss(alone, rows); });
  const at::Tensor expected = flat_floats(*alone);
  ASSERT_GT(largest_difference(expected, untrained), 4e-3);
  for (const Shard mode : sharded_modes()) {
    torch::nn::Sequential model = make_mixed_model();
    const auto inner = adamw()(model->parameters());
    DistributedOptimizer::Options options = with(mode);
    options.master_weights = true;
    DistributedOptimizer optimizer(*inner, *model, options);
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      mixed_loss(model, batch_rows(step, kRows * runtime_.rank(), kRows, kWidth, torch::kBFloat16))
          .backward();
      optimizer.step();
    }
    EXPECT_EQ(model[0]->as<torch::nn::Linear>()->weight.scalar_type(), torch::kBFloat16);
    EXPECT_EQ(model[1]->as<torch::nn::LayerNorm>()->weight.scalar_type(), torch::kFloat);
    EXPECT_EQ(model[4]->as<torch::nn::BatchNorm1d>()->running_var.scalar_type(), torch::kFloat);
    // As above, a parameter may be rounded differently.
    const at::Tensor trained = flat_floats(*model);
    EXPECT_LT(largest_difference(trained, expected), 4e-3) << name_of(mode);
    EXPECT_GT(((trained - expected).abs() < 1e-5).to(torch::kFloat).mean().item<double>(), 0.95)
        << name_of(mode);
  }
}

TEST_F(PrecisionTest, Report_CountsMasters) {
  for (const Shard mode : sharded_modes()) {
    const Line line(torch::kBFloat16);
    const auto inner = adamw()({line.weight});
    DistributedOptimizer::Options options = with(mode);
    options.master_weights = true;
    DistributedOptimizer optimizer(*inner, {{"weight", line.weight}}, options);
    optimizer.zero_grad();
    line.add_gradient(1.0);
    optimizer.step();
    const TrainingReport report = optimizer.report();
    constexpr std::size_t kElements = 300;
    const auto ranks = static_cast<std::size_t>(runtime_.size());
    if (report.now.optimizer_state > 0) {  // a rank without a shard has no state to measure
      EXPECT_EQ(report.expected.optimizer_state, kElements * 4 * 3 / ranks);
    }
    EXPECT_EQ(report.expected.gradients, kElements * 4 / (mode == Shard::Optimizer ? 1 : ranks));
    EXPECT_EQ(report.expected.parameters, kElements * 2 / (mode == Shard::Full ? ranks : 1));
    const at::Tensor state = torch::tensor(static_cast<std::int64_t>(report.now.optimizer_state));
    EXPECT_EQ(allreduce(state, {.op = ReduceOp::Sum}).item<std::int64_t>(), kElements * 4 * 3);
  }
}

/// Expects that a DistributedOptimizer of a bfloat16 parameter refuses the options with this text.
void expect_options_refused(const DistributedOptimizer::Options& options, const std::string& text) {
  const Line line(torch::kBFloat16);
  torch::optim::SGD inner({line.weight}, 1.0);
  expect_contains(text_thrown_by<InvalidArgument>([&] {
                    const DistributedOptimizer optimizer(inner, {{"weight", line.weight}}, options);
                  }),
                  text);
}

TEST_F(PrecisionTest, InvalidOptions_AreRefused) {
  DistributedOptimizer::Options options = with(Shard::None);
  options.master_weights = true;
  expect_options_refused(options, "master_weights concerns the shards");
  options = with(Shard::None);
  options.offload = true;
  expect_options_refused(options, "offload concerns the shards");
  options = with(Shard::Gradients);
  options.reduce_dtype = torch::kHalf;
  expect_options_refused(options, "it must be float32 or float64");
  options = with(Shard::None);
  options.reduce_dtype = torch::kFloat;
  options.fused = true;
  expect_options_refused(options, "with which fused = true cannot step");
}

}  // namespace kolo::test::precision_test
