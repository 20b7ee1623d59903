// Complex parameters in every mode: clipping, loss scales and checkpoints, compared with LibTorch
// in one process. sharded_models_test tests their training.
#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/torch/checkpoint.hpp"
#include "kolo/torch/grad_scaler.hpp"
#include "kolo/torch/model_dtype.hpp"
#include "kolo/torch/parameter_sync.hpp"
#include "support/mpi/variants.hpp"
#include "train/small_training.hpp"
#include "train/trained_models.hpp"
#include "train/training_fixture.hpp"

namespace kolo::test::complex_parameters_test {

const AlsoIn also_in({"uneven"});

constexpr std::int64_t kRows = 4;  // of each rank in a step

std::vector<OptimizerCase> optimizers() {
  using namespace torch::optim;
  return {{"sgd", maker<SGD>(SGDOptions(0.05).momentum(0.9))},
          {"adam", maker<Adam>(AdamOptions(1e-2).eps(1e-2))}};
}

/// How gradients are clipped, if `max_norm` is not 0.
struct Settings {
  double max_norm = 0;
  double norm_type = 2;
  bool has_scaler = false;
};

class ComplexParametersTest : public TrainingTest {
 protected:
  at::Tensor loss(ComplexModel& model, int step) const {
    return model.loss(step, rank() * kRows, kRows);
  }

  /// The norm of the last step, and the parameters after five steps.
  struct Trained {
    double norm = 0;
    at::Tensor parameters;
  };
  Trained train(const OptimizerCase& which, Shard mode, const Settings& settings) const {
    ComplexModel model;
    const auto inner = which.make(model.parameters());
    DistributedOptimizer optimizer(*inner, model, with(mode));
    GradScaler scaler({.init_scale = 1024});
    Trained trained;
    for (int step = 0; step < 5; ++step) {
      optimizer.zero_grad();
      const at::Tensor own = loss(model, step);
      (settings.has_scaler ? scaler.scale(own) : own).backward();
      if (settings.has_scaler) scaler.unscale_(optimizer);
      if (settings.max_norm > 0) {
        trained.norm = optimizer.clip_grad_norm_(settings.max_norm, settings.norm_type);
      }
      if (settings.has_scaler) {
        scaler.step(optimizer);
        scaler.update();
      } else {
        optimizer.step();
      }
    }
    trained.parameters = flat(model);
    return trained;
  }
  Trained train_alone(const OptimizerCase& which, const Settings& settings) const {
    ComplexModel model;
    const auto inner = which.make(model.parameters());
    Trained trained;
    for (int step = 0; step < 5; ++step) {
      inner->zero_grad();
      model.loss(step, 0, size() * kRows).backward();
      if (settings.max_norm > 0) {
        trained.norm = torch::nn::utils::clip_grad_norm_(model.parameters(), settings.max_norm,
                                                         settings.norm_type);
      }
      inner->step();
    }
    trained.parameters = flat(model);
    return trained;
  }
};

TEST_F(ComplexParametersTest, ClippingAndScales_AreThoseOfOneProcess) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const OptimizerCase& which : optimizers()) {
    for (const Settings& settings : {Settings{}, Settings{0.05}, Settings{0.05, 1},
                                     Settings{0.02, infinity, true}, Settings{0, 2, true}}) {
      const Trained alone = train_alone(which, settings);
      for (const Shard mode : all_modes()) {
        SCOPED_TRACE(std::string(which.name) + " " + std::string(name_of(mode)));
        const Trained trained = train(which, mode, settings);
        EXPECT_NEAR(trained.norm, alone.norm, 1e-4 * alone.norm) << settings.norm_type;
        EXPECT_LT(largest_difference(trained.parameters, alone.parameters), 2e-4);
        expect_equal_on_all_ranks(trained.parameters);
      }
    }
  }
}

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

TEST_F(ComplexParametersTest, RanksThatEndEarly_GiveZeros) {
  ComplexModel alone;
  const OptimizerCase sgd = optimizers().front();
  const auto alone_inner = sgd.make(alone.parameters());
  for (int step = 0; step < size(); ++step) {
    alone_inner->zero_grad();
    for (int r = step; r < size(); ++r) {
      (alone.loss(step, r * kRows, kRows) / size()).backward();
    }
    alone_inner->step();
  }
  for (const Shard mode : all_modes()) {
    ComplexModel model;
    const auto inner = sgd.make(model.parameters());
    DistributedOptimizer optimizer(*inner, model, with(mode));
    for (int step = 0; step <= rank(); ++step) {
      optimizer.zero_grad();
      loss(model, step).backward();
      optimizer.step();
    }
    optimizer.join();
    EXPECT_LT(largest_difference(flat(model), flat(alone)), 1e-5) << name_of(mode);
  }
}

TEST_F(ComplexParametersTest, AdasumOfEqualGradients_IsThatGradient) {
  ComplexModel model;
  ComplexModel alone;
  const OptimizerCase sgd = optimizers().front();
  const auto inner = sgd.make(model.parameters());
  const auto alone_inner = sgd.make(alone.parameters());
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

TEST_F(ComplexParametersTest, Checkpoints_ResumeInEveryMode) {
  const CommonFolder folder;
  for (const OptimizerCase& which : optimizers()) {
    const auto run = [&](ComplexModel& model, DistributedOptimizer& optimizer, int begin, int end) {
      for (int step = begin; step < end; ++step) {
        optimizer.zero_grad();
        loss(model, step).backward();
        optimizer.step();
      }
    };
    for (const Shard saved : all_modes()) {
      ComplexModel first;
      const auto first_inner = which.make(first.parameters());
      DistributedOptimizer before(*first_inner, first, with(saved));
      run(first, before, 0, 3);
      before.save(folder.path());
      before.save_full_state(folder.path() / "all.safetensors");
      const at::Tensor at_save = flat(first);
      run(first, before, 3, 5);
      const at::Tensor expected = flat(first);
      for (const Shard mode : all_modes()) {
        SCOPED_TRACE(std::string(which.name) + " " + std::string(name_of(saved)) + " as " +
                     std::string(name_of(mode)));
        ComplexModel second;
        {
          const at::NoGradGuard no_grad;
          for (const at::Tensor& parameter : second.parameters()) at::Tensor(parameter).mul_(3);
        }
        const auto second_inner = which.make(second.parameters());
        DistributedOptimizer after(*second_inner, second, with(mode));
        after.load(folder.path() / "all.safetensors");
        EXPECT_TRUE(torch::equal(flat(second), at_save));
        after.load(folder.path());
        run(second, after, 3, 5);
        EXPECT_LT(largest_difference(flat(second), expected), 1e-6);
      }
    }
  }
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
    const OptimizerCase sgd = optimizers().front();
    const auto plain_inner = sgd.make(plain.parameters());
    const auto wide_inner = sgd.make(wide.parameters());
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
