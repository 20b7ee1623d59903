// Shard::Full over several nodes: the ranks of a node gather parameters into memory that they
// share.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "support/mpi/variants.hpp"
#include "train/layer_units.hpp"
#include "train/sharding.hpp"
#include "train/training_fixture.hpp"

namespace kolo::test::node_slots_test {

const AlsoIn also_in({"messages", "nodes"});

using namespace layer_units;

class NodeSlotsTest : public TrainingTest {};

float& first_element(const at::Tensor& tensor) { return *tensor.data_ptr<float>(); }

TEST_F(NodeSlotsTest, RanksOfANode_ReadOneCopy) {
  if (!gathers_on_use()) GTEST_SKIP() << kNothingGathered;
  for (const bool reshards : {true, false}) {
    Layers model;
    torch::optim::SGD inner(model->parameters(), 0.1);
    DistributedOptimizer::Options options = layer_by_layer(Shard::Full);
    options.reshard_after_forward = reshards;
    DistributedOptimizer optimizer(inner, *model, options);
    for (const std::size_t layer : {1U, 2U}) {  // both slots
      const at::Tensor weight = model->layers[layer]->weight.detach();
      weight.sum();  // gathers the unit
      barrier();
      if (runtime_.local_rank() == 0) {
        first_element(weight) = static_cast<float>(100 + runtime_.cross_rank());
      }
      barrier();
      const bool sees_it = share_gathered_units() || runtime_.local_rank() == 0;
      EXPECT_EQ(first_element(weight) == static_cast<float>(100 + runtime_.cross_rank()), sees_it);
    }
  }
}

TEST_F(NodeSlotsTest, RankThatWouldTakeAnotherSlot_GetsAnErrorAtOnce) {
  if (!gathers_on_use()) GTEST_SKIP() << kNothingGathered;
  Layers model;
  torch::optim::SGD inner(model->parameters(), 0.1);
  DistributedOptimizer optimizer(inner, *model, layer_by_layer(Shard::Full));
  const auto use = [&](std::size_t layer) { model->layers[layer]->weight.detach().sum(); };
  use(0);
  use(1);
  if (is_last()) use(0);  // changes which unit is least recently used
  if (!share_gathered_units()) {
    use(2);
    return;
  }
  const std::string text = text_thrown_by<c10::Error>([&] { use(2); });
  expect_contains(text, "gathering unit 2 (layer2) into slot 0 on rank");
  expect_contains(text,
                  "gathering unit 2 (layer2) into slot 1 on rank " + std::to_string(size() - 1));
  expect_contains(text_thrown_by<MismatchError>([&] { optimizer.step(); }), "purpose differs");
}

/// Operators that use more units than there are slots: added slots belong to one rank. Units are
/// also used while these are in memory.
TEST_F(NodeSlotsTest, AddedSlots_AreTheRanksOwn) {
  const auto train = [&](Shard shard) {
    Layers model;
    torch::optim::AdamW inner(model->parameters(), torch::optim::AdamWOptions(1e-2));
    DistributedOptimizer optimizer(inner, *model, layer_by_layer(shard));
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      std::vector<at::Tensor> weights;
      for (const std::size_t i : {5U, 0U, 3U, 1U}) weights.push_back(model->layers[i]->weight);
      const at::Tensor all = torch::stack(weights);
      const at::Tensor out = model->forward(input(rank(), step), ascending());
      ((torch::stack(weights) * all).sum() * (rank() + 1) + out.square().sum()).backward();
      optimizer.step();
    }
    return flat(*model);
  };
  EXPECT_LT(largest_difference(train(Shard::Full), train(Shard::None)), 1e-5);
}

/// Active ranks use units in an order that the joined rank does not see.
TEST_F(NodeSlotsTest, JoinedRanks_GatherIntoTheSlotsOfTheOthers) {
  const auto train = [&](Shard shard) {
    Layers model;
    torch::optim::SGD inner(model->parameters(), 0.01);
    DistributedOptimizer optimizer(inner, *model, layer_by_layer(shard));
    const auto step = [&](int number, const std::vector<std::size_t>& order) {
      optimizer.zero_grad();
      model->forward(input(rank(), number), order).square().sum().backward();
      optimizer.step();
    };
    for (int epoch = 0; epoch < 2; ++epoch) {
      step(0, ascending());
      model->forward(input(0, 1), {0, 1, 2, 0});  // units stay in memory
      if (!is_last()) {
        step(1, {2, 0, 1, 2, 5, 3, 4, 0});
        std::vector<at::Tensor> weights;
        for (auto& layer : model->layers) weights.push_back(layer->weight.detach());
        torch::cat(weights).sum();
        step(2, {0, 1, 0, 2, 3, 2, 4, 5});
        model->forward(input(0, 2), {3, 4, 3, 5, 0});
      }
      optimizer.join();
      model->forward(input(0, 1), {0, 5, 1, 5});
    }
    step(3, ascending());
    return flat(*model);
  };
  EXPECT_LT(largest_difference(train(Shard::Full), train(Shard::Gradients)), 1e-5);
}

/// Each rank sends its block of a unit once to every other node.
TEST_F(NodeSlotsTest, BytesSent_AreThoseBetweenNodes) {
  if (!share_gathered_units()) GTEST_SKIP() << "each rank gathers for itself";
  Layers model;
  torch::optim::SGD inner(model->parameters(), 0.1);
  DistributedOptimizer optimizer(inner, *model, layer_by_layer(Shard::Full));
  const std::uint64_t before = runtime_.world().metrics().bytes_sent;
  model->layers[1]->weight.detach().sum();
  const std::uint64_t sent = runtime_.world().metrics().bytes_sent - before;
  const auto nodes = static_cast<std::uint64_t>(runtime_.cross_size());
  const std::uint64_t unit = kWidth * (kWidth + 1) * sizeof(float);
  const std::uint64_t block = unit / static_cast<std::uint64_t>(size());
  const std::uint64_t max_overhead = 256;  // padding, and row counts
  EXPECT_GE(sent, (nodes - 1) * block);
  EXPECT_LE(sent, (nodes - 1) * block + max_overhead);
  const auto reduced = kLayers * block * static_cast<std::uint64_t>(size() - 1);
  EXPECT_EQ(optimizer.report().expected_sent_per_step, reduced + 2 * kLayers * block * (nodes - 1));
}

}  // namespace kolo::test::node_slots_test
