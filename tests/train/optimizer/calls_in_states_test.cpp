// Calls in states that programs reach seldom: once a rank has joined, between an addition of
// parameters and its first step, after a batch that was skipped, while another optimizer waits.
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/error.hpp"
#include "kolo/torch/distributed_optimizer.hpp"
#include "support/errors.hpp"
#include "support/mpi/variants.hpp"
#include "train/models.hpp"
#include "train/optimizer/call_rules.hpp"
#include "train/sharding.hpp"
#include "train/small_training.hpp"
#include "train/training_fixture.hpp"

namespace kolo::test::calls_in_states_test {

using train::Call;
using train::CallRule;

const AlsoIn also_in({"uneven", "messages"});

class CallsInStatesTest : public TrainingTest, public testing::WithParamInterface<Shard> {};

INSTANTIATE_TEST_SUITE_P(, CallsInStatesTest, testing::ValuesIn(all_modes()),
                         [](const auto& item) { return std::string(kolo::name_of(item.param)); });

/// Calls that need all ranks, in some mode.
std::map<Call, std::function<void()>> calls_on(SmallTraining& training,
                                               const std::filesystem::path& folder) {
  DistributedOptimizer& optimizer = *training.optimizer;
  const at::Tensor weight = training.model->parameters()[0];
  return {
      {Call::ForEachGradient, [&] { optimizer.for_each_gradient([](const auto&, auto&) {}); }},
      {Call::AddParameters,
       [&] {
         optimizer.zero_grad();
         optimizer.add_param_group({{torch::ones({3}).requires_grad_()}});
         try {
           optimizer.zero_grad();
         } catch (...) {
           optimizer.param_groups().pop_back();
           throw;
         }
       }},
      {Call::Save, [&, folder] { training.save(folder); }},
      {Call::SaveFullState, [&, folder] { optimizer.save_full_state(folder / "all"); }},
      {Call::Load, [&, folder] { training.load(folder); }},
      {Call::ParameterState, [&, weight] { optimizer.parameter_state(weight); }},
      {Call::ResetParameterState, [&, weight] { optimizer.reset_parameter_state(weight); }},
      {Call::FullParameters, [&] { optimizer.full_parameters([] {}); }},
      {Call::CheckReplicas, [&] { optimizer.check_replicas(); }},
  };
}

TEST_P(CallsInStatesTest, OnceARankHasJoined_WhatNeedsAllRanksIsRefused) {
  if (size() == 1) GTEST_SKIP() << "nobody is left when one rank has joined";
  const CommonFolder folder;
  for (const int first : {0, size() - 1}) {
    SmallTraining training(GetParam());
    training.run(0, 2);
    const auto calls = calls_on(training, folder.path());
    const auto expect_refusals = [&] {
      for (const CallRule& rule : train::call_rules()) {
        if (!rule.needs_all_from || *rule.needs_all_from > GetParam()) continue;
        EXPECT_EQ(text_thrown_by<InvalidArgument>(calls.at(rule.call)),
                  "DistributedOptimizer: " + std::string(rule.name) +
                      " needs all ranks, but rank " + std::to_string(first) +
                      " has joined. Call it before any rank joins, or after join() has returned.");
      }
    };
    if (rank() != first) {
      expect_refusals();  // in the order of the rules: before and after gradients are reduced
      training.run(2, 3);
      expect_refusals();
      training.optimizer->zero_grad();
    }
    training.optimizer->join();
    training.run(3, 5);
    training.optimizer->save(folder.path());  // ranks' scalers have taken other numbers of steps
    expect_equal_on_all_ranks(flat(*training.model));
  }
}

/// A chain of layers, each a bucket of its own, more than there are slots of memory.
struct Layers {
  explicit Layers(Shard shard) {
    for (int i = 0; i < 8; ++i) {
      const at::Tensor ramp = torch::arange(100, torch::kFloat64).add(7.0 * i);
      weights.push_back((ramp.sin() * 0.3).view({10, 10}).requires_grad_());
      names.emplace_back("layer" + std::to_string(i), weights.back());
    }
    inner = std::make_unique<torch::optim::SGD>(weights, 0.1);
    optimizer.emplace(*inner, names, with(shard));
  }
  at::Tensor forward(at::Tensor x, std::size_t omitted) const {
    for (std::size_t i = 0; i < weights.size(); ++i) {
      if (i != omitted) x = torch::tanh(x.matmul(weights[i]));
    }
    return x;
  }
  std::vector<at::Tensor> weights;
  DistributedOptimizer::NamedParameters names;
  std::unique_ptr<torch::optim::SGD> inner;
  std::optional<DistributedOptimizer> optimizer;
};

TEST_P(CallsInStatesTest, TwoOptimizersOverOneLoss_DoNotWaitForOneAnotherInBackward) {
  if (GetParam() == Shard::Full && gathers_on_use()) {
    GTEST_SKIP() << "ranks must use the same layers where parameters are gathered";
  }
  const auto train = [this](Shard shard) {
    Layers lower(shard);
    Layers upper(shard);
    for (int step = 0; step < 3; ++step) {
      lower.optimizer->zero_grad();
      upper.optimizer->zero_grad();
      const at::Tensor rows = batch_rows(step, 4 * rank(), 4, 10, torch::kFloat64);
      // The last rank leaves out the layer that comes first in backward().
      const std::size_t omitted = is_last() && size() > 1 ? 7 : 8;
      upper.forward(lower.forward(rows, 8), omitted).square().sum().backward();
      lower.optimizer->step();
      upper.optimizer->step();
    }
    std::vector<at::Tensor> all;
    for (const Layers* layers : {&lower, &upper}) {
      for (const at::Tensor& weight : layers->weights) all.push_back(weight.detach().flatten());
    }
    return torch::cat(all).clone();
  };
  expect_alike(train(GetParam()), train(Shard::None));
}

TEST_P(CallsInStatesTest, EachPassIsReduced_WithTheSameBitsHoweverLateARankIs) {
  if (GetParam() < Shard::Gradients) GTEST_SKIP() << "gradients are reduced once a step";
  const auto train = [this](bool is_late) {
    DistributedOptimizer::Options options = with(GetParam());
    options.backward_passes_per_step = 2;
    options.accumulation = Accumulation::Reduced;
    options.compression = Compression::top_k(0.1);
    Layers layers(Shard::None);
    layers.optimizer.reset();
    layers.optimizer.emplace(*layers.inner, layers.names, options);
    for (int step = 0; step < 3; ++step) {
      layers.optimizer->zero_grad();
      for (int pass = 0; pass < 2; ++pass) {
        const at::Tensor rows = batch_rows(step, 40 * pass + 4 * rank(), 4, 10, torch::kFloat64);
        const at::Tensor loss = layers.forward(rows, 8).square().sum();
        if (is_late && is_last()) std::this_thread::sleep_for(std::chrono::milliseconds(30));
        loss.backward();
      }
      layers.optimizer->step();
    }
    std::vector<at::Tensor> all;
    for (const at::Tensor& weight : layers.weights) all.push_back(weight.detach().flatten());
    return torch::cat(all).clone();
  };
  EXPECT_TRUE(torch::equal(train(true), train(false)));
}

}  // namespace kolo::test::calls_in_states_test
