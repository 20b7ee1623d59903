// An optimizer's parameters: several models, several optimizers, and parameters that are added
// later.
#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/error.hpp"
#include "kolo/runtime.hpp"
#include "kolo/torch/distributed_optimizer.hpp"
#include "runtime/runtimes.hpp"
#include "train/models.hpp"
#include "train/sharding.hpp"
#include "train/training_fixture.hpp"

namespace kolo::test::optimizer_parameters_test {

class OptimizerParametersTest : public TrainingTest {
 protected:
  /// This rank's gradient, and its mean over all ranks.
  at::Tensor own(double factor) const { return torch::arange(3) * factor + rank(); }
  at::Tensor mean(double factor) const { return torch::arange(3) * factor + (size() - 1) / 2.0; }
  static at::Tensor make() { return torch::zeros({3}, torch::requires_grad()); }
};

enum class Side { Wrapper, Wrapped };

class AddedGroupTest : public OptimizerParametersTest, public testing::WithParamInterface<Side> {};

INSTANTIATE_TEST_SUITE_P(, AddedGroupTest, testing::Values(Side::Wrapper, Side::Wrapped),
                         [](const auto& test) {
                           return test.param == Side::Wrapper ? "Wrapper" : "Wrapped";
                         });

TEST_P(AddedGroupTest, AddedGroup_TakesPartFromTheNextCallOn) {
  // Added before backward(), or only before step().
  for (const bool before_backward : {true, false}) {
    const at::Tensor first = make();
    torch::optim::SGD inner({first}, 1.0);
    DistributedOptimizer optimizer(inner, {{"first", first}});
    torch::optim::Optimizer& side =
        GetParam() == Side::Wrapper ? static_cast<torch::optim::Optimizer&>(optimizer) : inner;
    (first * own(1)).sum().backward();
    optimizer.step();

    const at::Tensor second = make();
    const auto add = [&] {
      side.add_param_group(torch::optim::OptimizerParamGroup(
          {second}, std::make_unique<torch::optim::SGDOptions>(0.5)));
    };
    if (before_backward) add();
    optimizer.zero_grad();
    (first * own(2) + second * own(3)).sum().backward();
    if (!before_backward) add();
    optimizer.step();
    EXPECT_TRUE(torch::allclose(-first, mean(1) + mean(2)));
    EXPECT_TRUE(torch::allclose(-second, 0.5 * mean(3)));

    // The following steps use it too, whichever side changes its options.
    ASSERT_EQ(optimizer.param_groups().size(), 2U);
    ASSERT_EQ(inner.param_groups().size(), 2U);
    optimizer.param_groups()[1].options().set_lr(0.25);
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      second.detach().zero_();
      (first * own(4) + second * own(step)).sum().backward();
      optimizer.step();
      EXPECT_TRUE(torch::allclose(-second, 0.25 * mean(step))) << step;
    }
  }
}

/// A change of the groups {a, b}, with the learning rate 1, and {c}, with 1/4.
struct GroupChange {
  const char* name;
  void (*change)(std::vector<torch::optim::OptimizerParamGroup>& groups);
  std::vector<double> rates;  // of a, b and c afterwards
};
void PrintTo(const GroupChange& which, std::ostream* stream) { *stream << which.name; }

const GroupChange kGroupChanges[] = {
    {"Removed", [](auto& groups) { groups[0].params().pop_back(); }, {1.0, 0.0, 0.25}},
    {"Moved",
     [](auto& groups) {
       groups[1].params().insert(groups[1].params().begin(), groups[0].params()[1]);
       groups[0].params().pop_back();
     },
     {1.0, 0.25, 0.25}},
    {"Swapped",
     [](auto& groups) { std::swap(groups[0].params(), groups[1].params()); },
     {0.25, 0.25, 1.0}},
    {"OneForOne",  // groups keep their sizes
     [](auto& groups) { std::swap(groups[0].params()[0], groups[1].params()[0]); },
     {0.25, 1.0, 1.0}},
    {"FirstErased", [](auto& groups) { groups.erase(groups.begin()); }, {0.0, 0.0, 0.25}},
    {"LastErased", [](auto& groups) { groups.pop_back(); }, {1.0, 1.0, 0.0}},
};

class ChangedGroupTest : public OptimizerParametersTest,
                         public testing::WithParamInterface<std::tuple<GroupChange, Side, Shard>> {
};

INSTANTIATE_TEST_SUITE_P(, ChangedGroupTest,
                         testing::Combine(testing::ValuesIn(kGroupChanges),
                                          testing::Values(Side::Wrapper, Side::Wrapped),
                                          testing::ValuesIn(all_modes())),
                         [](const auto& item) {
                           const bool is_on_wrapper = std::get<1>(item.param) == Side::Wrapper;
                           return std::string(std::get<0>(item.param).name) +
                                  (is_on_wrapper ? "OnWrapper_" : "OnWrapped_") +
                                  std::string(kolo::name_of(std::get<2>(item.param)));
                         });

TEST_P(ChangedGroupTest, AParameterIsSteppedWithTheOptionsOfItsGroup) {
  const auto& [change, side_of_change, mode] = GetParam();
  const Parameters parameters{make(), make(), make()};
  const auto group = [](const Parameters& members, double lr) {
    return torch::optim::OptimizerParamGroup(members,
                                             std::make_unique<torch::optim::SGDOptions>(lr));
  };
  torch::optim::SGD inner(
      {group({parameters[0], parameters[1]}, 1.0), group({parameters[2]}, 0.25)},
      torch::optim::SGDOptions(1.0));
  DistributedOptimizer optimizer(
      inner, {{"a", parameters[0]}, {"b", parameters[1]}, {"c", parameters[2]}}, with(mode));
  const bool is_on_wrapper = side_of_change == Side::Wrapper;
  torch::optim::Optimizer& side =
      is_on_wrapper ? static_cast<torch::optim::Optimizer&>(optimizer) : inner;
  torch::optim::Optimizer& other =
      is_on_wrapper ? inner : static_cast<torch::optim::Optimizer&>(optimizer);
  Parameters expected(3, torch::zeros({3}));
  const auto train = [&](const std::vector<double>& rates) {
    optimizer.zero_grad();
    at::Tensor loss = torch::zeros({});
    for (std::size_t i = 0; i < 3; ++i) {
      const auto factor = static_cast<double>(i + 1);
      loss = loss + (parameters[i] * own(factor)).sum();
      expected[i] = expected[i] - rates[i] * mean(factor);
    }
    loss.backward();
    optimizer.step();
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(torch::allclose(parameters[i], expected[i])) << i << parameters[i] << expected[i];
    }
  };
  for (int step = 0; step < 3; ++step) train({1.0, 1.0, 0.25});
  change.change(side.param_groups());
  for (int step = 0; step < 3; ++step) train(change.rates);
  ASSERT_EQ(other.param_groups().size(), side.param_groups().size());
  // A group keeps its options on the other side, too.
  std::vector<double> rates = change.rates;
  std::ranges::replace(rates, other.param_groups().back().options().get_lr(), 0.125);
  other.param_groups().back().options().set_lr(0.125);
  train(rates);
}

TEST_P(AddedGroupTest, AGroupErasedWhileTheOtherSideSetsARate_KeepsTheRate) {
  const at::Tensor first = make();
  const at::Tensor second = make();
  torch::optim::SGD inner(Parameters{first}, torch::optim::SGDOptions(1.0));
  inner.add_param_group(
      torch::optim::OptimizerParamGroup({second}, std::make_unique<torch::optim::SGDOptions>(0.5)));
  DistributedOptimizer optimizer(inner, {{"first", first}, {"second", second}});
  torch::optim::Optimizer* side = &optimizer;
  torch::optim::Optimizer* other = &inner;
  if (GetParam() == Side::Wrapped) std::swap(side, other);
  side->param_groups().erase(side->param_groups().begin());
  other->param_groups()[1].options().set_lr(0.25);
  (first * own(1) + second * own(2)).sum().backward();
  optimizer.step();
  EXPECT_TRUE(torch::equal(first, torch::zeros({3})));
  EXPECT_TRUE(torch::allclose(-second, 0.25 * mean(2)));
}

TEST_F(OptimizerParametersTest, GroupsAddedOnBothSides_AreAnError) {
  const at::Tensor first = make();
  torch::optim::SGD inner({first}, 1.0);
  DistributedOptimizer optimizer(inner, {{"first", first}});
  inner.add_param_group(torch::optim::OptimizerParamGroup({make()}));
  EXPECT_THROW(optimizer.add_param_group(torch::optim::OptimizerParamGroup({make()})),
               InvalidArgument);
  EXPECT_THROW(optimizer.zero_grad(), InvalidArgument);
}

TEST_F(OptimizerParametersTest, RequiresGrad_MayChange) {
  const at::Tensor always = make();
  const at::Tensor later = make().requires_grad_(false);
  torch::optim::SGD inner({always, later}, 1.0);
  DistributedOptimizer optimizer(inner, {{"always", always}, {"later", later}});
  at::Tensor expected = torch::zeros({3});
  for (int step = 0; step < 12; ++step) {
    const bool is_trained = step / 2 % 2 == 1;
    later.requires_grad_(is_trained);
    optimizer.zero_grad();
    (always * own(step) + later * own(2 * step)).sum().backward();
    optimizer.step();
    if (is_trained) expected -= mean(2 * step);
    EXPECT_TRUE(torch::allclose(later, expected)) << step;
  }
  EXPECT_TRUE(torch::allclose(-always, mean(1) * 12 + torch::arange(3) * 54));
}

TEST_F(OptimizerParametersTest, AdagradMayBeWrappedAgain_OrStepAlone) {
  for (const Shard mode : all_modes()) {
    for (const Shard second : all_modes()) {
      const at::Tensor weight = torch::ones({40}, torch::kFloat64).requires_grad_();
      torch::optim::Adagrad inner({weight}, torch::optim::AdagradOptions(0.5).eps(0.0));
      at::Tensor expected = torch::ones({40}, torch::kFloat64);
      double sum = 0.0;
      for (const Shard each : {mode, second}) {
        DistributedOptimizer optimizer(inner, {{"weight", weight}}, with(each));
        for (int step = 0; step < 3; ++step) {
          optimizer.zero_grad();
          weight.sum().backward();
          optimizer.step();
          expected -= 0.5 / std::sqrt(sum += 1.0);
        }
        EXPECT_TRUE(torch::allclose(weight, expected)) << weight;
        if (each != Shard::None) sum = 0.0;  // the state was sharded, and is gone
      }
      if (second == Shard::Full) continue;  // ranks still share the parameter's memory
      inner.zero_grad();
      weight.sum().backward();
      inner.step();
      EXPECT_TRUE(torch::allclose(weight, expected - 0.5 / std::sqrt(sum + 1.0))) << weight;
    }
  }
}

TEST_F(OptimizerParametersTest, SeveralOptimizers_ShareOneModel) {
  const at::Tensor first = make();
  const at::Tensor second = make();
  torch::optim::SGD first_inner({first}, 1.0);
  torch::optim::SGD second_inner({second}, 1.0);
  // Equal names: operations of the two optimizers must not be confused.
  DistributedOptimizer first_optimizer(first_inner, {{"weight", first}});
  DistributedOptimizer second_optimizer(second_inner, {{"weight", second}});
  for (int step = 0; step < 6; ++step) {
    first.detach().zero_();
    second.detach().zero_();
    first_optimizer.zero_grad();
    second_optimizer.zero_grad();
    (first * own(step) + second * own(-step)).sum().backward();
    if (step % 2 == 1) second_optimizer.synchronize();
    first_optimizer.step();
    second_optimizer.step();
    EXPECT_TRUE(torch::allclose(-first, mean(step))) << step;
    EXPECT_TRUE(torch::allclose(-second, mean(-step))) << step;
  }
}

TEST_F(OptimizerParametersTest, ParameterOfAnotherOptimizer_IsRefusedWhileThatOneLives) {
  for (const Shard shard : all_modes()) {
    SCOPED_TRACE(std::string(name_of(shard)));
    const at::Tensor shared = make();
    const at::Tensor other = make();
    torch::optim::SGD first_inner({shared}, 1.0);
    torch::optim::SGD second_inner({other, shared}, 1.0);
    const DistributedOptimizer::NamedParameters names{{"other", other}, {"shared", shared}};
    {
      DistributedOptimizer first(first_inner, {{"shared", shared}}, with(shard));
      const std::string text = text_thrown_by<InvalidArgument>(
          [&] { const DistributedOptimizer second(second_inner, names, with(shard)); });
      expect_contains(text, "parameter 'shared': it belongs to another DistributedOptimizer");
      (shared * own(1)).sum().backward();
      first.step();
    }
    EXPECT_TRUE(torch::allclose(-shared, mean(1)));
    DistributedOptimizer second(second_inner, names, with(shard));
    second.zero_grad();
    (shared * own(2) + other * own(3)).sum().backward();
    second.step();
    EXPECT_TRUE(torch::allclose(-shared, mean(1) + mean(2)));
    EXPECT_TRUE(torch::allclose(-other, mean(3)));
  }
}

TEST_F(OptimizerParametersTest, GraphThatOutlivesTheOptimizer_HasNoHooksOfIt) {
  const at::Tensor weight = make();
  at::Tensor loss;
  {
    torch::optim::SGD inner({weight}, 1.0);
    const DistributedOptimizer optimizer(inner, {{"weight", weight}});
    loss = (weight * own(1)).sum();
  }
  const auto* const node = loss.grad_fn()->next_edge(0).function->next_edge(0).function.get();
  EXPECT_TRUE(node->pre_hooks().empty());
  EXPECT_TRUE(node->post_hooks().empty());
  loss.backward();
  EXPECT_TRUE(torch::equal(weight.grad(), own(1)));
}

TEST_F(OptimizerParametersTest, OneOptimizer_TrainsSeveralModelsAndTiedParameters) {
  const auto train = [&](bool is_distributed) {
    torch::nn::Sequential encoder = make_mlp(torch::kFloat64);
    torch::nn::Sequential decoder{torch::nn::Linear(3, 9), torch::nn::Linear(9, 9)};
    decoder->to(torch::kFloat64);
    std::vector<at::Tensor> parameters = encoder->parameters();
    for (const at::Tensor& parameter : decoder->parameters()) parameters.push_back(parameter);
    torch::optim::SGD inner(parameters, 0.05);
    std::optional<DistributedOptimizer> optimizer;
    if (is_distributed) optimizer.emplace(inner, *encoder);  // the decoder's have no names
    for (int step = 0; step < 5; ++step) {
      const std::int64_t rows = is_distributed ? 12 / size() : 12;
      const at::Tensor batch =
          batch_rows(step, is_distributed ? rank() * rows : 0, rows, 9, torch::kFloat64);
      const auto pass = [&] {
        const at::Tensor code = encoder->forward(batch);
        const at::Tensor tied = torch::linear(decoder->forward(code), parameters[0]);
        torch::mse_loss(tied, batch).backward();
      };
      if (is_distributed) {
        optimizer->zero_grad();
        pass();
        optimizer->step();
      } else {
        inner.zero_grad();
        pass();
        inner.step();
      }
    }
    return torch::cat({flat(*encoder), flat(*decoder)});
  };
  EXPECT_LT((train(true) - train(false)).abs().max().item<double>(), 1e-12);
}

/// Trains a GAN with two optimizers; the generator's backward() passes through the discriminator.
at::Tensor train_gan(const Runtime& runtime, bool is_distributed, bool uses_model_zero_grad) {
  torch::nn::Sequential generator = make_mlp(torch::kFloat64, 4, 2);
  torch::nn::Sequential discriminator = make_mlp(torch::kFloat64, 3, 2);
  const auto generator_inner = make_optimizer(Algorithm::Adam, generator->parameters());
  const auto discriminator_inner = make_optimizer(Algorithm::Adam, discriminator->parameters());
  std::optional<DistributedOptimizer> distributed_g;
  std::optional<DistributedOptimizer> distributed_d;
  if (is_distributed) {
    distributed_g.emplace(*generator_inner, *generator);
    distributed_d.emplace(*discriminator_inner, *discriminator);
  }
  const auto zero = [&](torch::nn::Sequential& model, auto& inner, auto& distributed) {
    if (!is_distributed) {
      inner->zero_grad();
    } else if (uses_model_zero_grad) {
      model->zero_grad();
    } else {
      distributed->zero_grad();
    }
  };
  const auto step = [&](auto& inner, auto& distributed) {
    if (is_distributed) {
      distributed->step();
    } else {
      inner->step();
    }
  };
  const std::int64_t rows = is_distributed ? 12 / runtime.size() : 12;
  const std::int64_t first = is_distributed ? runtime.rank() * rows : 0;
  for (int i = 0; i < 8; ++i) {
    const at::Tensor real = batch_rows(i, first, rows, 3, torch::kFloat64);
    const at::Tensor noise = batch_rows(i + 100, first, rows, 4, torch::kFloat64);
    zero(discriminator, discriminator_inner, distributed_d);
    const at::Tensor fake = generator->forward(noise);
    ((discriminator->forward(real) - 1).square().mean() +
     discriminator->forward(fake.detach()).square().mean())
        .backward();
    step(discriminator_inner, distributed_d);
    zero(generator, generator_inner, distributed_g);
    (discriminator->forward(fake) - 1).square().mean().backward();
    step(generator_inner, distributed_g);
  }
  return torch::cat({flat(*generator), flat(*discriminator)});
}

TEST_F(OptimizerParametersTest, Gan_TrainsAsInOneProcess) {
  const at::Tensor alone = train_gan(runtime_, false, false);
  for (const bool uses_model_zero_grad : {false, true}) {
    const at::Tensor together = train_gan(runtime_, true, uses_model_zero_grad);
    EXPECT_LT((together - alone).abs().max().item<double>(), 1e-9) << uses_model_zero_grad;
  }
}

}  // namespace kolo::test::optimizer_parameters_test
