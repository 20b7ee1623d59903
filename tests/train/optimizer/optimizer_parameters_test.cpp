// Groups that change on either side, and parameters that another optimizer trains.
#include <algorithm>
#include <memory>
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

/// With the side on which a group is erased.
class ErasedGroupTest : public OptimizerParametersTest, public testing::WithParamInterface<Side> {};

INSTANTIATE_TEST_SUITE_P(, ErasedGroupTest, testing::Values(Side::Wrapper, Side::Wrapped),
                         [](const auto& test) {
                           return test.param == Side::Wrapper ? "Wrapper" : "Wrapped";
                         });

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

TEST_P(ErasedGroupTest, AGroupErasedWhileTheOtherSideSetsARate_KeepsTheRate) {
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

}  // namespace kolo::test::optimizer_parameters_test
