#include "kolo/torch/distributed_optimizer.hpp"

#include <memory>
#include <sstream>
#include <tuple>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/error.hpp"
#include "kolo/runtime.hpp"
#include "kolo/torch/tensor_collectives.hpp"
#include "support/mpi/variants.hpp"
#include "train/models.hpp"
#include "train/training_fixture.hpp"

namespace kolo::test::distributed_optimizer_test {

const AlsoIn also_in({"alone", "uneven", "nodes"});

constexpr std::int64_t kBatch = 12;  // divisible by 1, 2, 3 and 4
constexpr std::int64_t kWidth = 9;
constexpr int kSteps = 20;

/// The parameters after kSteps steps, with this rank's rows of the common batch.
at::Tensor train(Runtime& runtime, Algorithm algorithm,
                 const DistributedOptimizer::Options& options = {}) {
  torch::nn::Sequential model = make_mlp(torch::kFloat32);
  const auto inner = make_optimizer(algorithm, model->parameters());
  DistributedOptimizer optimizer(*inner, *model, options);
  const std::int64_t rows = kBatch / runtime.size();
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    loss_of(model, batch_rows(step, runtime.rank() * rows, rows, kWidth, torch::kFloat32))
        .backward();
    optimizer.step();
  }
  return flat(*model);
}

class DistributedOptimizerTest : public TrainingTest {};

class OptimizersTest : public DistributedOptimizerTest,
                       public testing::WithParamInterface<Algorithm> {};

INSTANTIATE_TEST_SUITE_P(Optimizers, OptimizersTest,
                         testing::Values(Algorithm::Sgd, Algorithm::Adam, Algorithm::AdamW,
                                         Algorithm::RmsProp),
                         [](const auto& test) { return name_of(test.param); });

TEST_P(OptimizersTest, Bits_AreTheSameInEveryRunAndForEveryBucketSize) {
  const at::Tensor reference = train(runtime_, GetParam());
  EXPECT_TRUE(torch::equal(train(runtime_, GetParam()), reference));
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{500}, std::size_t{1} << 30}) {
    const at::Tensor got = train(runtime_, GetParam(), {.bucket_bytes = bytes});
    EXPECT_TRUE(torch::equal(got, reference)) << bytes;
  }
}

struct HalfPrecision {
  Compression compression;
  double roundoff;  ///< largest relative error of a number in it
};
const HalfPrecision kHalfPrecisions[] = {{Compression::fp16(), 0x1p-11},
                                         {Compression::bf16(), 0x1p-8}};

TEST_F(DistributedOptimizerTest, HalfPrecision_RoundsEachRanksGradientAndTheirSum) {
  const int n = runtime_.size();
  // The gradient of the sum of w_i * values_i is `values`.
  const auto gradient = [&](const at::Tensor& values, ReduceOp op, const Compression& compression) {
    const at::Tensor weight = torch::zeros_like(values).requires_grad_();
    torch::optim::SGD inner({weight}, 1.0);
    DistributedOptimizer optimizer(inner, {{"weight", weight}},
                                   {.op = op, .compression = compression});
    (weight * values).sum().backward();
    optimizer.synchronize();
    return weight.grad().clone();
  };
  const at::Tensor whole = torch::arange(30) * 1.0;  // sums below 256, exact in eight bits
  const at::Tensor thirds = (whole + 1) / 3;
  for (const auto& [compression, roundoff] : kHalfPrecisions) {
    EXPECT_TRUE(torch::equal(gradient(whole + 4 * runtime_.rank(), ReduceOp::Sum, compression),
                             whole * n + 2 * n * (n - 1)))
        << compression.name();
    const at::Tensor average = thirds + 2.0 * (n - 1);
    const at::Tensor error =
        (gradient(thirds + 4 * runtime_.rank(), ReduceOp::Average, compression) - average).abs();
    EXPECT_LE((error / average).max().item<double>(), 2.01 * roundoff) << compression.name();
    EXPECT_GT(error.max().item<double>(), 1e-6) << compression.name() << " rounds nothing";
  }
}

TEST_F(DistributedOptimizerTest, UnsupportedUses_AreRefused) {
  const at::Tensor weight = torch::zeros({2}, torch::requires_grad());
  torch::optim::SGD sgd({weight}, 1.0);
  const auto with = [&](const DistributedOptimizer::Options& options) {
    DistributedOptimizer optimizer(sgd, {{"weight", weight}}, options);
  };
  EXPECT_THROW(with({.op = ReduceOp::Max}), InvalidArgument);
  EXPECT_THROW(with({.backward_passes_per_step = 0}), InvalidArgument);
  EXPECT_THROW(with({.gradient_predivide_factor = 0.0}), InvalidArgument);
  EXPECT_THROW(with({.op = ReduceOp::Sum, .gradient_predivide_factor = 2.0}), InvalidArgument);
  torch::optim::LBFGS lbfgs({weight}, 1.0);
  EXPECT_THROW(DistributedOptimizer(lbfgs, {{"weight", weight}}), InvalidArgument);
  expect_refused(
      [] { DistributedOptimizer(std::unique_ptr<torch::optim::SGD>(), *make_mlp(torch::kFloat)); },
      "a null pointer");
}

TEST_F(DistributedOptimizerTest, TorchSave_SavesAndLoadsTheWrappedOptimizer) {
  using torch::optim::AdamParamState;
  const at::Tensor weight = torch::zeros({3}, torch::requires_grad());
  torch::optim::Adam inner({weight}, torch::optim::AdamOptions(0.5).betas({0.75, 0.5}));
  std::stringstream stream;
  {
    DistributedOptimizer optimizer(inner, {{"weight", weight}});
    (weight * (torch::arange(3) + runtime_.rank())).sum().backward();
    optimizer.step();
    torch::save(optimizer, stream);
  }

  const at::Tensor gradient = torch::arange(3) + (runtime_.size() - 1) / 2.0;  // the average
  const auto expect_loaded = [&](torch::optim::Optimizer& other) {
    ASSERT_EQ(other.state().size(), 1U);
    const auto& options =
        static_cast<const torch::optim::AdamOptions&>(other.param_groups()[0].options());
    EXPECT_DOUBLE_EQ(options.lr(), 0.5);
    EXPECT_EQ(options.betas(), std::make_tuple(0.75, 0.5));
    const auto& state =
        static_cast<const AdamParamState&>(*other.state().at(weight.unsafeGetTensorImpl()));
    EXPECT_EQ(state.step(), 1);
    EXPECT_TRUE(torch::allclose(state.exp_avg(), 0.25 * gradient)) << state.exp_avg();
    EXPECT_TRUE(torch::allclose(state.exp_avg_sq(), 0.5 * gradient.square())) << state.exp_avg_sq();
  };
  torch::optim::Adam plain({weight}, 0.125);
  torch::load(plain, stream);
  expect_loaded(plain);

  stream.seekg(0);
  torch::optim::Adam wrapped({weight}, 0.125);
  DistributedOptimizer again(wrapped, {{"weight", weight}});
  torch::load(again, stream);
  expect_loaded(wrapped);
}

}  // namespace kolo::test::distributed_optimizer_test
