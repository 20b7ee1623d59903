// Communication that overlaps with backward(), and the control traffic of training in the steady
// state.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/runtime.hpp"
#include "kolo/torch/bucket_hook.hpp"
#include "kolo/torch/distributed_optimizer.hpp"
#include "support/becomes_true.hpp"
#include "train/models.hpp"
#include "train/training_fixture.hpp"

namespace kolo::test::overlap_test {

constexpr std::int64_t kWidth = 9;

class OptimizerOverlapTest : public TrainingTest {};

TEST_F(OptimizerOverlapTest, FirstBucket_IsReducedBeforeTheLastGradientArrives) {
  if (runtime_.size() == 1) GTEST_SKIP() << "one rank has nothing to overlap";
  constexpr std::int64_t kColumns = 40;
  torch::nn::Sequential model(torch::nn::Linear(kColumns, kColumns));
  torch::nn::Sequential rest = make_mlp(torch::kFloat32, kColumns);
  model->extend(*rest);
  torch::optim::SGD inner(model->parameters(), 1e-3);
  DistributedOptimizer::Options options;
  options.bucket_bytes = kColumns * (kColumns + 1) * sizeof(float);  // one bucket per layer
  DistributedOptimizer optimizer(inner, *model, options);
  const auto bytes_sent = [&] { return runtime_.world().metrics().bytes_sent; };
  bool has_moved = false;
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const at::Tensor rows = batch_rows(step, runtime_.rank(), 4, kColumns, torch::kFloat32);
    const at::Tensor features = model[0]->as<torch::nn::Linear>()->forward(rows);
    const std::uint64_t before = bytes_sent();
    if (step == 2) {  // the first step lays out the buckets
      // The first layer's gradients arrive last: they wait until a bucket has been sent.
      features.register_hook([&](const at::Tensor&) {
        has_moved = becomes_true([&] { return bytes_sent() > before; });
      });
    }
    rest->forward(features).square().sum().backward();
    optimizer.step();
  }
  EXPECT_TRUE(has_moved);
  const auto& times = optimizer.last_step_times();
  ASSERT_GT(times.buckets.size(), 4U);
  EXPECT_LT(times.buckets.front().started, times.last_gradient);
}

TEST_F(OptimizerOverlapTest, Buckets_FollowTheOrderInWhichGradientsArrive) {
  std::vector<at::Tensor> weights;
  for (int i = 0; i < 3; ++i) weights.push_back(torch::ones({4}, torch::requires_grad()));
  torch::optim::SGD inner(weights, 0.1);
  DistributedOptimizer::Options options;
  options.bucket_bytes = 64;  // one bucket per weight
  DistributedOptimizer optimizer(inner, DistributedOptimizer::NamedParameters{}, options);
  std::vector<std::size_t> layout(3);  // the weight in each bucket
  optimizer.register_bucket_hook([&](GradientBucket bucket) -> std::optional<TensorHandle> {
    for (std::size_t i = 0; i < weights.size(); ++i) {
      if (bucket.parameters[0].is_same(weights[i])) layout[bucket.index] = i;
    }
    return std::nullopt;
  });
  const auto step = [&] {
    optimizer.zero_grad();
    (torch::ones({4}) * weights[2] * weights[0] * weights[1]).sum().backward();
    optimizer.step();
    return layout;
  };
  EXPECT_EQ(step(), (std::vector<std::size_t>{2, 1, 0}));  // a guess
  EXPECT_EQ(step(), (std::vector<std::size_t>{1, 0, 2}));
}

/// A world in which ranks send wake-up requests only where the protocol requires it, not because
/// others are slow.
InitOptions patient() {
  InitOptions options = in_test_world();
  options.config.tuning.patience = std::chrono::seconds(10);
  return options;
}

TEST_F(OptimizerOverlapTest, SteadyTraining_NeedsNoControlTrafficButHeadersOfOneSize) {
  Runtime runtime(patient());
  torch::nn::Sequential model = make_mlp(torch::kFloat32);
  torch::optim::SGD inner(model->parameters(), 1e-3);
  DistributedOptimizer::Options options;
  options.bucket_bytes = 64;  // about one bucket per parameter
  options.process_set = &runtime.world();
  DistributedOptimizer optimizer(inner, *model, options);
  const auto run = [&](int first, int steps) {
    for (int i = first; i < first + steps; ++i) {
      optimizer.zero_grad();
      loss_of(model, batch_rows(i, runtime.rank(), 4, kWidth, torch::kFloat32)).backward();
      optimizer.step();
    }
    return runtime.world().metrics();
  };
  const ProcessSet::Metrics before = run(0, 50);
  const ProcessSet::Metrics after = run(50, 100);
  run(150, 1);  // no rank shuts down before the others have read their metrics
  EXPECT_EQ(after.negotiations, before.negotiations);
  EXPECT_EQ(after.bytes_packed, before.bytes_packed);
  EXPECT_TRUE(after.wake_up_requests == before.wake_up_requests || runtime.size() == 1)
      << after.wake_up_requests - before.wake_up_requests;
  // Every header has the same size; the last one may belong to an unfinished exchange.
  const std::uint64_t bytes = after.header_bytes - before.header_bytes;
  const std::uint64_t exchanges = after.exchanges - before.exchanges;
  ASSERT_GE(exchanges, 100U);
  if (runtime.size() == 1) {
    EXPECT_EQ(bytes, 0U);  // there is no other rank
    return;
  }
  EXPECT_EQ(bytes % (bytes / exchanges), 0U) << bytes << " bytes in " << exchanges << " exchanges";
}

}  // namespace kolo::test::overlap_test
