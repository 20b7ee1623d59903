// What ranks must do alike is compared: options, members of groups, and whether steps are taken.
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/error.hpp"
#include "kolo/torch/distributed_optimizer.hpp"
#include "kolo/torch/grad_scaler.hpp"
#include "kolo/torch/tensor_needs.hpp"
#include "runtime/runtimes.hpp"
#include "train/sharding.hpp"
#include "train/sharding/sharded_guards_fixture.hpp"
#include "train/small_training.hpp"

namespace kolo::test::rank_comparison_test {

constexpr const char* kAlone = "one rank agrees with itself";

class RankComparisonTest : public ShardedGuardsTest, public testing::WithParamInterface<Shard> {
 protected:
  /// A model with two parameter groups, of the weights and of the biases.
  struct Training {
    Training() : Training(0.1) {}
    explicit Training(double lr) {
      Parameters weights;
      Parameters biases;
      for (const auto& named : model->named_parameters()) {
        (named.key().ends_with("weight") ? weights : biases).push_back(named.value());
      }
      using torch::optim::SGDOptions;
      std::vector<torch::optim::OptimizerParamGroup> groups;
      groups.emplace_back(weights, std::make_unique<SGDOptions>(SGDOptions(lr).momentum(0.5)));
      groups.emplace_back(biases, std::make_unique<SGDOptions>(0.25));
      inner = std::make_unique<torch::optim::SGD>(std::move(groups), SGDOptions(lr));
      optimizer = std::make_unique<DistributedOptimizer>(*inner, *model, with(GetParam()));
    }
    torch::nn::Sequential model = make_mlp(torch::kFloat32);
    std::unique_ptr<torch::optim::SGD> inner;
    std::unique_ptr<DistributedOptimizer> optimizer;
  };

  /// Whether ranks wait for the updates of others in step().
  static bool waits_for_updates() {
    return GetParam() != Shard::None && !(GetParam() == Shard::Full && gathers_on_use());
  }
  at::Tensor loss(torch::nn::Sequential& model, int step) const {
    return loss_of(model, batch_rows(step, 3 * rank(), 3, kWidth, torch::kFloat32));
  }
  std::string last() const { return "on rank " + std::to_string(size() - 1); }
  void train(Training& training, int steps) {
    ShardedGuardsTest::train(training.model, *training.optimizer, steps);
  }
  static torch::optim::SGDOptions& options(Optimizer& of, std::size_t group) {
    return static_cast<torch::optim::SGDOptions&>(of.param_groups()[group].options());
  }
};

INSTANTIATE_TEST_SUITE_P(, RankComparisonTest, testing::ValuesIn(all_modes()),
                         [](const auto& item) { return std::string(kolo::name_of(item.param)); });

TEST_P(RankComparisonTest, OptionsThatDifferAtWrapping_AreAnError) {
  if (size() == 1) GTEST_SKIP() << kAlone;
  const std::string text = text_thrown_by<MismatchError>([&] { Training(is_last() ? 0.2 : 0.1); });
  expect_contains(text, "option lr of parameter group 0 is 0.1");
  expect_contains(text, "is 0.2");
  expect_contains(text, last());
}

TEST_P(RankComparisonTest, GroupsThatDifferAtWrapping_AreAnError) {
  if (size() == 1) GTEST_SKIP() << kAlone;
  const at::Tensor a = torch::zeros({3}).requires_grad_();
  const at::Tensor b = torch::zeros({3}).requires_grad_();
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(is_last() ? Parameters{a, b} : Parameters{a});
  groups.emplace_back(is_last() ? Parameters{} : Parameters{b});
  torch::optim::SGD inner(groups, torch::optim::SGDOptions(0.1));
  expect_contains(
      text_thrown_by<MismatchError>(
          [&] { DistributedOptimizer(inner, {{"a", a}, {"b", b}}, with(GetParam())); }),
      "parameter group of 'b' is 1 on rank 0, and parameter group of 'b' is 0 " + last());
}

TEST_P(RankComparisonTest, ACallThatChangesGradientsOrStateOnOneRankAlone_IsAnError) {
  if (size() == 1) GTEST_SKIP() << kAlone;
  const std::vector<std::pair<std::string, std::function<void(Training&)>>> calls{
      {"clip_grad_norm_", [](Training& each) { each.optimizer->clip_grad_norm_(0.01); }},
      {"clip_grad_value_(0.01)", [](Training& each) { each.optimizer->clip_grad_value_(0.01); }},
      {"for_each_gradient()",
       [](Training& each) { each.optimizer->for_each_gradient([](const auto&, auto&) {}); }},
      {"reset_parameter_state(",
       [](Training& each) { each.optimizer->reset_parameter_state(each.model->parameters()[0]); }},
  };
  for (const auto& [name, call] : calls) {
    Training training;
    train(training, 2);
    const std::string text = text_thrown_by<MismatchError>([&, &call = call] {
      backward(training.model, 2);
      if (is_last()) call(training);
      training.optimizer->step();
      train(training, 2);  // sharded modes notice some of them earlier
    });
    expect_contains(text, name);
    expect_contains(text, last());
  }
}

TEST_P(RankComparisonTest, OptionsThatAStepAppliedDifferently_AreAnErrorBeforeTheNext) {
  if (size() == 1) GTEST_SKIP() << kAlone;
  Training training;
  train(training, 2);
  if (is_last()) options(*training.optimizer, 1).weight_decay(0.5);
  train(training, 1);  // it is applied
  options(*training.optimizer, 1).weight_decay(0.0);
  const at::Tensor before = flat(*training.model);
  const std::string text = text_thrown_by<MismatchError>([&] { train(training, 1); });
  expect_contains(text, "option weight_decay of parameter group 1 is 0 on rank 0");
  expect_contains(text, "is 0.5 " + last());
  EXPECT_TRUE(torch::equal(flat(*training.model), before));
  ShardedGuardsTest::train(training.model, *training.optimizer, 3);  // it was an error once
}

TEST_P(RankComparisonTest, AMemberMovedOnOneRank_IsAnError) {
  if (size() == 1) GTEST_SKIP() << kAlone;
  Training training;
  train(training, 2);
  auto& groups = training.optimizer->param_groups();
  if (is_last()) {
    groups[0].params().push_back(groups[1].params().back());
    groups[1].params().pop_back();
  }
  train(training, 1);
  expect_contains(text_thrown_by<MismatchError>([&] { train(training, 1); }),
                  "parameter group of '8.bias' is 1 on rank 0");
}

/// How the last rank gets out of a step that the others take.
enum class Drop { ZeroGrad, Synchronized, ModelsZeroGrad };

TEST_P(RankComparisonTest, AStepThatOneRankDrops_IsAnError) {
  if (size() == 1) GTEST_SKIP() << kAlone;
  for (const Drop drop : {Drop::ZeroGrad, Drop::Synchronized, Drop::ModelsZeroGrad}) {
    for (const auto& [clips, steps_before] :
         {std::pair{false, 0}, {false, 2}, {true, 0}, {true, 2}}) {
      Training training;
      train(training, steps_before);
      const auto one_step = [&, clips = clips](bool is_dropped) {
        training.optimizer->zero_grad();
        backward(training.model, 2);
        if (drop == Drop::Synchronized) training.optimizer->synchronize();
        if (!is_dropped) {
          if (clips) training.optimizer->clip_grad_norm_(0.1);
          training.optimizer->step();
        } else if (drop == Drop::ModelsZeroGrad) {
          training.model->zero_grad();
        } else {
          training.optimizer->zero_grad();
        }
      };
      const std::string text = text_thrown_by<MismatchError>([&] {
        one_step(is_last());
        one_step(false);
      });
      expect_contains(text, "zero_grad()");
      if (!clips || GetParam() == Shard::None) expect_contains(text, "step()");
      expect_contains(text, "rank " + std::to_string(size() - 1));
      ShardedGuardsTest::train(training.model, *training.optimizer, 3);
      if (GetParam() != Shard::None) expect_equal_on_all_ranks(flat(*training.model));
    }
  }
}

TEST_P(RankComparisonTest, AStepWithAScalerThatOneRankDrops_IsAnError) {
  if (size() == 1) GTEST_SKIP() << kAlone;
  for (const int dropped : {0, 2}) {
    for (const bool clips : {false, true}) {
      Training training;
      GradScaler scaler;
      const auto run = [&](int begin, int end) {
        for (int step = begin; step < end; ++step) {
          training.optimizer->zero_grad();
          scaler.scale(loss(training.model, step)).backward();
          if (step == dropped && is_last()) continue;
          if (clips) {
            scaler.unscale_(*training.optimizer);
            training.optimizer->clip_grad_norm_(0.1);
          }
          scaler.step(*training.optimizer);
          scaler.update();
        }
      };
      run(0, dropped);
      const std::string text = text_thrown_by<MismatchError>([&] { run(dropped, dropped + 2); });
      expect_contains(text, "zero_grad()");
      expect_contains(text, "rank " + std::to_string(size() - 1));
      scaler.update(1.0);
      run(3, 6);
    }
  }
}

TEST_P(RankComparisonTest, AStepThatAScalerSkipsOnOneRank_IsAnError) {
  if (size() == 1) GTEST_SKIP() << kAlone;
  if (GetParam() != Shard::None) GTEST_SKIP() << "sharded gradients are checked by all ranks";
  Training training;
  GradScaler scaler;
  const auto step = [&](bool changes) {
    training.optimizer->zero_grad();
    scaler.scale(loss(training.model, 0)).backward();
    training.optimizer->synchronize();
    if (changes) training.model->parameters()[0].mutable_grad().fill_(std::nanf(""));
    const bool has_stepped = scaler.step(*training.optimizer);
    scaler.update();
    return has_stepped;
  };
  EXPECT_EQ(step(is_last()), !is_last());
  expect_contains(text_thrown_by<MismatchError>([&] { step(false); }),
                  "a step that GradScaler skipped " + last());
}

/// Fails in its third step on the last rank.
class FailingOnce final : public torch::optim::SGD, public Elementwise {
 public:
  FailingOnce(Parameters parameters, bool fails)
      : SGD(std::move(parameters), torch::optim::SGDOptions(0.1)), fails_(fails) {}
  at::Tensor step(LossClosure closure = nullptr) override {
    if (++steps_ == 3 && fails_) throw BackendError("no third step");
    return SGD::step(std::move(closure));
  }

 private:
  bool fails_;
  int steps_ = 0;
};

TEST_P(RankComparisonTest, AStepThatFailsOnOneRank_IsAnErrorOnAll) {
  if (size() == 1) GTEST_SKIP() << kAlone;
  torch::nn::Sequential model = make_mlp(torch::kFloat32);
  FailingOnce inner(model->parameters(), is_last());
  DistributedOptimizer optimizer(inner, *model, with(GetParam()));
  ShardedGuardsTest::train(model, optimizer, 2);
  const auto step = [&] { ShardedGuardsTest::train(model, optimizer, 1); };
  std::string text;
  if (is_last()) {
    EXPECT_THROW(step(), BackendError);
  } else if (waits_for_updates()) {
    text = text_thrown_by<MismatchError>(step);
  } else {
    step();
  }
  model->zero_grad();
  if (!waits_for_updates()) text = text_thrown_by<MismatchError>(step);
  if (!is_last() || !waits_for_updates()) {
    expect_contains(text, "no third step " + last());
  }
  ShardedGuardsTest::train(model, optimizer, 2);
  if (GetParam() != Shard::None) expect_equal_on_all_ranks(flat(*model));
}

/// AMSGrad of complex numbers fails, on the one rank that has the shard with elements.
TEST_P(RankComparisonTest, AStepThatFailsWhereElementsAre_IsAnErrorOnAll) {
  if (size() == 1) GTEST_SKIP() << kAlone;
  const at::Tensor turn = torch::ones({3}, torch::kComplexFloat).requires_grad_();
  torch::optim::Adam inner({turn}, torch::optim::AdamOptions(0.1).amsgrad(true));
  DistributedOptimizer optimizer(inner, {{"turn", turn}}, with(GetParam()));
  const auto step = [&] {
    turn.abs().sum().backward();
    optimizer.step();
  };
  const bool fails = GetParam() == Shard::None || rank() == 0;
  if (fails) {
    expect_contains(text_thrown_by<c10::Error>(step), "complex");
  } else if (waits_for_updates()) {
    const std::string text = text_thrown_by<MismatchError>(step);
    expect_contains(text, "complex");
    expect_contains(text, "rank 0");
  } else {
    step();
  }
  if (GetParam() == Shard::None || waits_for_updates()) return;
  expect_contains(text_thrown_by<MismatchError>(step), "complex");
}

TEST_P(RankComparisonTest, SaveAndJoin_CompareTheLastStep) {
  if (size() == 1) GTEST_SKIP() << kAlone;
  const CommonFolder folder;
  for (const bool saves : {true, false}) {
    Training training;
    train(training, 2);
    if (is_last()) options(*training.inner, 0).momentum(0.75);
    train(training, 1);
    expect_contains(text_thrown_by<MismatchError>([&] {
                      saves ? static_cast<void>(training.optimizer->save(folder.path()))
                            : static_cast<void>(training.optimizer->join());
                    }),
                    "option momentum of parameter group 0 is 0.5 on rank 0");
  }
}

TEST_P(RankComparisonTest, Save_ComparesTheOptionsThatItWrites) {
  if (size() == 1) GTEST_SKIP() << kAlone;
  const CommonFolder folder;
  Training training;
  train(training, 1);
  if (is_last()) options(*training.inner, 0).lr(0.75);
  expect_contains(text_thrown_by<MismatchError>([&] { training.optimizer->save(folder.path()); }),
                  "option lr of parameter group 0 is 0.1 on rank 0");
}

}  // namespace kolo::test::rank_comparison_test
