// Which parameters are gathered together, and how long they stay in memory.
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/error.hpp"
#include "kolo/torch/filters.hpp"
#include "support/mpi/variants.hpp"
#include "train/layer_units.hpp"
#include "train/sharding.hpp"
#include "train/training_fixture.hpp"

namespace kolo::test::unit_policy_test {

const AlsoIn also_in({"messages", "nodes"});

using namespace layer_units;

class UnitPolicyTest : public TrainingTest {};

/// Layers in blocks.
class BlockImpl : public torch::nn::Module {
 public:
  BlockImpl() {
    first = register_module("first", torch::nn::Linear(kWidth, kWidth));
    second = register_module("second", torch::nn::Linear(kWidth, kWidth));
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
};
TORCH_MODULE(Block);

/// The first weight of the first block is also registered in the model itself.
class BlocksImpl : public torch::nn::Module {
 public:
  BlocksImpl() {
    for (int i = 0; i < 3; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), Block()));
    }
    head = register_module("head", torch::nn::Linear(kWidth, kWidth));
    register_parameter("tied", blocks[0]->first->weight);
  }
  std::vector<Block> blocks;
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Blocks);

/// Whether each of block0.first.weight (tied), block0.second, block1.first, block1.second and head
/// is gathered when block1.first is used.
std::vector<bool> gathered_with_block1(const ModuleFilter& policy) {
  Blocks model;
  std::vector<at::Tensor> parameters;
  for (const auto& item : model->named_parameters()) {
    if (item.key() != "tied") parameters.push_back(item.value());
  }
  torch::optim::SGD inner(parameters, 0.1);
  DistributedOptimizer::Options options = layer_by_layer(Shard::Full);
  options.unit_policy = policy;
  DistributedOptimizer optimizer(inner, *model, options);
  model->blocks[1]->first->weight.detach().sum();
  std::vector<bool> gathered;
  for (const at::Tensor& tensor :
       {model->blocks[0]->first->weight, model->blocks[0]->second->weight,
        model->blocks[1]->first->bias, model->blocks[1]->second->weight, model->head->weight}) {
    gathered.push_back(is_in_memory(tensor));
  }
  return gathered;
}

TEST_F(UnitPolicyTest, UnitsAreThoseOfThePolicy) {
  if (!gathers_on_use()) GTEST_SKIP() << kNothingGathered;
  const std::vector<bool> blocks{false, false, true, true, false};
  EXPECT_EQ(gathered_with_block1(modules_of<Block>()), blocks);
  EXPECT_EQ(gathered_with_block1(modules_of<BlockImpl, torch::nn::Conv2d>()), blocks);
  EXPECT_EQ(gathered_with_block1(modules_named("block?")), blocks);
  const std::vector<bool> layers{false, false, true, false, false};
  EXPECT_EQ(gathered_with_block1(modules_named("*")), blocks);  // does not match across dots
  EXPECT_EQ(gathered_with_block1(modules_named("block1.*")), layers);
  EXPECT_EQ(gathered_with_block1([](const std::string& name, const torch::nn::Module& module) {
              return name == "block1" || module.as<torch::nn::Linear>() != nullptr;
            }),
            layers);  // the innermost module decides
  EXPECT_EQ(gathered_with_block1(nullptr), layers);
}

TEST_F(UnitPolicyTest, PolicyWithoutModelOrWithGroups_IsRefused) {
  Blocks model;
  torch::optim::SGD inner(model->head->parameters(), 0.1);
  const auto wrap = [&](const auto& names, DistributedOptimizer::Options options) {
    options.unit_policy = modules_named("*");
    return text_thrown_by<InvalidArgument>(
        [&] { DistributedOptimizer(inner, names, std::move(options)); });
  };
  expect_contains(wrap(model->named_parameters().pairs(), {}), "unit_policy needs a model");
  expect_contains(wrap(*model, {.groups = {model->head->parameters()}}),
                  "groups and unit_policy are both given");
}

TEST_F(UnitPolicyTest, UnitsMayStayFromForwardToBackward) {
  const auto train_keeping = [&](bool reshards) {
    Layers model;
    torch::optim::SGD inner(model->parameters(), 0.01);
    DistributedOptimizer::Options options = layer_by_layer(Shard::Full);
    options.reshard_after_forward = reshards;
    DistributedOptimizer optimizer(inner, *model, options);
    for (int step = 0; step < 3; ++step) {
      const at::Tensor out = model->forward(input(rank(), step), ascending());
      if (gathers_on_use()) {
        EXPECT_EQ(is_in_memory(model->layers[0]->weight), !reshards);
      }
      out.sum().backward();
      optimizer.step();
      if (gathers_on_use()) {
        EXPECT_FALSE(is_in_memory(model->layers[0]->weight));
      }
    }
    return std::pair{model->layers[0]->weight.detach().clone(), optimizer.report()};
  };
  const auto [weight, report] = train_keeping(true);
  const auto [kept_weight, kept_report] = train_keeping(false);
  EXPECT_TRUE(torch::equal(weight, kept_weight));
  if (gathers_on_use()) {
    EXPECT_LT(kept_report.sent_per_step, report.sent_per_step);
    EXPECT_LT(kept_report.expected_sent_per_step, report.expected_sent_per_step);
  }
}

}  // namespace kolo::test::unit_policy_test
