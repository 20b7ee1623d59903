// Complex parameters where random training programs have none: Adasum, overflows of one part,
// precision, broadcasts, and what is refused.
#include <limits>
#include <utility>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/torch/grad_scaler.hpp"
#include "kolo/torch/model_dtype.hpp"
#include "kolo/torch/parameter_sync.hpp"
#include "support/mpi/variants.hpp"
#include "train/trained_models.hpp"
#include "train/training_fixture.hpp"

namespace kolo::test::complex_parameters_test {

const AlsoIn also_in({"uneven"});

constexpr std::int64_t kRows = 4;  // of each rank in a step

/// Momentum SGD.
std::unique_ptr<torch::optim::SGD> make_sgd(const ComplexModel& model) {
  return std::make_unique<torch::optim::SGD>(model.parameters(),
                                             torch::optim::SGDOptions(0.05).momentum(0.9));
}

class ComplexParametersTest : public TrainingTest {
 protected:
  at::Tensor loss(ComplexModel& model, int step) const {
    return model.loss(step, rank() * kRows, kRows);
  }
};

TEST_F(ComplexParametersTest, OverflowOfAnImaginaryPart_SkipsTheStepOnAllRanks) {
  for (const Shard mode : all_modes()) {
    ComplexModel model;
    torch::optim::SGD inner(model.parameters(), torch::optim::SGDOptions(0.05));
    DistributedOptimizer optimizer(inner, model, with(mode));
    GradScaler scaler({.init_scale = 1024});
    const at::Tensor before = flat(model);
    at::Tensor own = loss(model, 0);
    if (is_last()) {
      own = own +
            at::imag(model.named_parameters()["bias"])[3] * std::numeric_limits<float>::infinity();
    }
    scaler.scale(own).backward();
    scaler.step(optimizer);
    scaler.update();
    EXPECT_TRUE(torch::equal(flat(model), before)) << name_of(mode);
    EXPECT_EQ(scaler.get_scale(), 512);
  }
}

TEST_F(ComplexParametersTest, AdasumOfEqualGradients_IsThatGradient) {
  ComplexModel model;
  ComplexModel alone;
  const auto inner = make_sgd(model);
  const auto alone_inner = make_sgd(alone);
  DistributedOptimizer::Options options = with(Shard::None);
  options.op = ReduceOp::Adasum;
  DistributedOptimizer optimizer(*inner, model, options);
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    alone_inner->zero_grad();
    model.loss(step, 0, kRows).backward();
    alone.loss(step, 0, kRows).backward();
    optimizer.step();
    alone_inner->step();
  }
  EXPECT_LT(largest_difference(flat(model), flat(alone)), 1e-5);
}

TEST_F(ComplexParametersTest, PrecisionOptions_LeaveComplexParametersAlone) {
  ComplexModel model;
  set_dtype(model, at::kBFloat16);
  EXPECT_EQ(model.named_parameters()["output.weight"].scalar_type(), at::kBFloat16);
  EXPECT_EQ(model.named_parameters()["bias"].scalar_type(), at::kComplexFloat);
  set_dtype(model, at::kFloat);
  for (const Shard mode : sharded_modes()) {
    ComplexModel plain;
    ComplexModel wide;
    const auto plain_inner = make_sgd(plain);
    const auto wide_inner = make_sgd(wide);
    DistributedOptimizer::Options options = with(mode);
    DistributedOptimizer one(*plain_inner, plain, options);
    options.master_weights = true;
    options.reduce_dtype = at::kFloat;
    options.compression = Compression::none();
    DistributedOptimizer other(*wide_inner, wide, options);
    for (int step = 0; step < 3; ++step) {
      for (auto& [trained, optimizer] : {std::pair{&plain, &one}, {&wide, &other}}) {
        optimizer->zero_grad();
        loss(*trained, step).backward();
        optimizer->step();
      }
    }
    expect_alike(flat(wide), flat(plain));
  }
}

TEST_F(ComplexParametersTest, Broadcasts_GiveTheRootsParametersAndState) {
  ComplexModel model;
  torch::optim::Adam adam(model.parameters(), torch::optim::AdamOptions(1e-2).eps(1e-2));
  const auto run = [&] {
    adam.zero_grad();
    loss(model, 0).backward();
    adam.step();
  };
  run();  // different on every rank
  broadcast_parameters(model, size() - 1);
  broadcast_optimizer_state(adam, size() - 1);
  expect_equal_on_all_ranks(flat(model));
  adam.zero_grad();
  model.loss(3, 0, kRows).backward();
  adam.step();
  expect_equal_on_all_ranks(flat(model));
}

TEST_F(ComplexParametersTest, ImaginaryPartsWrittenInsteadOfSteps_AreDetected) {
  const at::Tensor phase = at::ones({1}, at::kComplexDouble).requires_grad_();
  torch::optim::SGD sgd({phase}, torch::optim::SGDOptions(0.1));
  DistributedOptimizer optimizer(sgd, {{"phase", phase}}, with(Shard::None));
  const auto misuse = [&] {
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      torch::real(phase * phase.conj()).sum().backward();
      const at::NoGradGuard no_grad;
      torch::view_as_real(phase).select(1, 1).add_(1);
    }
  };
  expect_refused(misuse, "gradients were discarded twice without a step() between");
}

TEST_F(ComplexParametersTest, WhatCannotBeStepped_IsRefused) {
  ComplexModel model;
  torch::optim::Adam adam(model.parameters());
  DistributedOptimizer::Options options = with(Shard::Optimizer);
  options.fused = true;
  expect_refused([&] { DistributedOptimizer(adam, model, options); },
                 "parameter 'weight': it is complex, which fused = true cannot step");
  const at::Tensor lazy = at::ones({3}, at::kComplexFloat).conj().requires_grad_();
  torch::optim::SGD sgd({lazy}, torch::optim::SGDOptions(0.1));
  expect_refused([&] { DistributedOptimizer(sgd, {{"lazy", lazy}}); },
                 "parameter 'lazy': it is a lazy conjugate");
}

}  // namespace kolo::test::complex_parameters_test
