// GradScaler's scale, and its effect on gradients, in every shard mode.
#include <cmath>
#include <cstdint>
#include <set>
#include <vector>

#include "train/scaling.hpp"

namespace kolo::test::grad_scaler_test {

// --- the scale ---

/// The scale after each of `steps` steps, starting at 8: multiplied by 4 after every three
/// consecutive good steps, divided by 4 after a bad one.
std::vector<double> expected_scales(int steps, const std::set<int>& bad) {
  std::vector<double> scales;
  int exponent = 0;
  int first = 0;  // of the run of good steps
  for (int step = 0; step < steps; ++step) {
    int runs = (step + 1 - first) / 3;
    if (bad.contains(step)) {
      exponent += (step - first) / 3 - 1;
      first = step + 1;
      runs = 0;
    }
    scales.push_back(8.0 * std::pow(4.0, exponent + runs));
  }
  return scales;
}

TEST_F(GradScalerTest, Scale_FollowsItsClosedForm) {
  const std::set<int> bad{2, 7, 8, 15};
  const std::vector<double> expected = expected_scales(20, bad);
  for (const Shard shard : all_modes()) {
    Single model(with(shard));
    GradScaler scaler(
        {.init_scale = 8.0, .growth_factor = 4.0, .backoff_factor = 0.25, .growth_interval = 3});
    EXPECT_EQ(scaler.get_scale(), 8.0);
    for (int step = 0; step < 20; ++step) {
      model.optimizer.zero_grad();
      const bool is_bad = bad.contains(step) && step % size() == rank();
      model.backward(scaler, is_bad ? -kInfinity : 1.0);
      EXPECT_EQ(scaler.step(model.optimizer), !bad.contains(step)) << step;
      scaler.update();
      EXPECT_EQ(scaler.get_scale(), expected[static_cast<std::size_t>(step)]) << step;
    }
    EXPECT_EQ(model.value(), 1.0 - 0.25 * 16);
  }
}

TEST_F(GradScalerTest, Scale_StaysInTheRangeOfFloats) {
  for (const bool grows : {true, false}) {
    Single model;
    const double first = grows ? 0x1p127 : 0x1p-126;
    GradScaler scaler({.init_scale = first, .growth_interval = 1});
    model.backward(scaler, grows ? 0x1p-126 : kInfinity);
    EXPECT_EQ(scaler.step(model.optimizer), grows);
    scaler.update();
    EXPECT_EQ(scaler.get_scale(), first);
    EXPECT_EQ(scaler.state().growth_tracker, 0);
  }
}

TEST_F(GradScalerTest, Loss_KeepsATypeThatCanHoldIt) {
  GradScaler scaler;
  const auto scaled = [&](at::ScalarType type, at::IntArrayRef shape) {
    return scaler.scale(torch::full(shape, 1.5, type));
  };
  EXPECT_EQ(scaled(at::kDouble, {}).scalar_type(), at::kDouble);
  EXPECT_EQ(scaled(at::kFloat, {2}).scalar_type(), at::kFloat);
  EXPECT_EQ(scaled(at::kBFloat16, {2}).scalar_type(), at::kBFloat16);
  EXPECT_EQ(scaled(at::kHalf, {}).item<double>(), 1.5 * 65536.0);  // not infinite
}

TEST_F(GradScalerTest, DisabledScaler_LeavesStepsOfOneRankAlone) {
  Single model;
  GradScaler scaler({.enabled = false});
  if (rank() == 0) {
    const auto alone = model.optimizer.no_sync();
    const auto local = model.optimizer.skip_synchronize();
    model.weight.sum().backward();
    scaler.unscale_(model.optimizer);
    EXPECT_EQ(model.weight.grad().item<double>(), 1.0);
    EXPECT_TRUE(scaler.step(model.optimizer));
    EXPECT_EQ(model.value(), 0.75);
  }
}

// --- gradients ---

TEST_F(GradScalerTest, GradientsOfAllTypes_AreUnscaled) {
  std::vector<at::Tensor> parameters;
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    parameters.push_back(torch::ones({5}, type).requires_grad_());
  }
  torch::nn::Embedding rows(torch::nn::EmbeddingOptions(6, 2).sparse(true));
  parameters.push_back(rows->weight);
  torch::optim::SGD inner(parameters, 0.1);
  DistributedOptimizer optimizer(inner, DistributedOptimizer::NamedParameters{},
                                 {.op = ReduceOp::Sum, .shard = Shard::None});
  GradScaler scaler;
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    at::Tensor loss = rows->forward(torch::full({2}, 3, torch::kLong)).sum();
    for (std::size_t i = 0; i < 3; ++i) {
      loss = loss + (parameters[i] * torch::arange(5) * (rank() + 1)).sum().to(at::kFloat);
    }
    scaler.scale(loss).backward();
    scaler.unscale_(optimizer);
    const double ranks = size() * (size() + 1) / 2.0;
    for (std::size_t i = 0; i < 3; ++i) {
      expect_equal(parameters[i].grad(),
                   (torch::arange(5) * ranks).to(parameters[i].scalar_type()));
    }
    at::Tensor dense = torch::zeros({6, 2});
    dense[3] = 2.0 * size();
    const at::Tensor& of_rows = rows->weight.grad();
    EXPECT_EQ(of_rows.is_sparse(), step > 0);  // known from the second step on
    expect_equal(step > 0 ? of_rows.to_dense() : of_rows, dense);
    EXPECT_TRUE(scaler.step(optimizer));
    scaler.update();
  }
}

TEST_F(GradScalerTest, Overflow_IsReducedTogetherWithTheNorm) {
  const auto bytes_per_step = [&](Shard shard, bool scales, bool clips) {
    torch::nn::Sequential model = make_mlp(torch::kFloat32);
    torch::optim::SGD inner(model->parameters(), 0.1);
    DistributedOptimizer optimizer(inner, *model, with(shard));
    GradScaler scaler({.enabled = scales});
    std::uint64_t before = 0;
    for (int step = 0; step < 3; ++step) {
      before = runtime_.world().metrics().bytes_sent;
      optimizer.zero_grad();
      scaler.scale(loss(model, step)).backward();
      scaler.unscale_(optimizer);
      if (clips) optimizer.clip_grad_norm_(0.1);
      scaler.step(optimizer);
      scaler.update();
    }
    return runtime_.world().metrics().bytes_sent - before;
  };
  for (const Shard shard : all_modes()) {
    const std::uint64_t neither = bytes_per_step(shard, false, false);
    const std::uint64_t one = bytes_per_step(shard, true, false);
    EXPECT_EQ(bytes_per_step(shard, true, true), one);
    EXPECT_EQ(bytes_per_step(shard, false, true), one);
    EXPECT_EQ(one > neither, size() > 1 && shard != Shard::None);
  }
}

}  // namespace kolo::test::grad_scaler_test
