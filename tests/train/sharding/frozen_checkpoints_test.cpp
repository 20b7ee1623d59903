// Checkpoints of models with frozen parameters, which may be gathered on use.
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support/mpi/variants.hpp"
#include "train/adapted_layers.hpp"
#include "train/sharding.hpp"
#include "train/small_training.hpp"
#include "train/training_fixture.hpp"

namespace kolo::test::frozen_checkpoints_test {

const AlsoIn also_in({"uneven", "nodes"});

using namespace adapted_layers;
using layer_units::input;

using torch::optim::AdamW;
using torch::optim::AdamWOptions;

class FrozenCheckpointsTest : public AdaptedLayersTest {};

/// Two weights, of which the second may be in no group.
struct TwoWeights {
  explicit TwoWeights(Shard shard, bool has_second = true)
      : inner(has_second ? Parameters{first, second} : Parameters{first},
              AdamWOptions(1e-2).eps(1e-4)),
        optimizer(inner, {{"first", first}, {"second", second}}, with(shard)) {}
  void step() {
    (first.square().sum() + second.square().sum()).backward();
    optimizer.step();
  }

  static constexpr std::int64_t kElements = 301;
  at::Tensor first = torch::ones({kElements}, torch::kFloat64).requires_grad_();
  at::Tensor second = torch::zeros({kElements}, torch::kFloat64).requires_grad_();
  AdamW inner;
  DistributedOptimizer optimizer;
};

TEST_F(FrozenCheckpointsTest, StateOfAParameterInNoGroup_IsNotDroppedSilently) {
  const CommonFolder folder;
  for (const Shard mode : all_modes()) {
    TwoWeights before(mode);
    before.step();
    before.optimizer.save(folder.path());
    TwoWeights after(mode, /*has_second=*/false);
    expect_contains(text_thrown_by<InvalidArgument>([&] { after.optimizer.load(folder.path()); }),
                    "optimizer state of parameter 'second', which is in no parameter group");
    using Names = std::vector<std::string>;
    EXPECT_EQ(after.optimizer.load(folder.path(), {.strict = false}).unused,
              (Names{"optimizer.exp_avg.second", "optimizer.exp_avg_sq.second"}));
    const LoadOptions without_state{.optimizer_state = false};
    EXPECT_EQ(after.optimizer.load(folder.path(), without_state).unused, Names());
  }
}

TEST_F(FrozenCheckpointsTest, SecondOptimizer_TakesOverFrozenParameters) {
  AdaptedLayers model;
  const auto parameters = [&](std::size_t layer) {
    return std::vector<at::Tensor>{model->layers[layer]->down, model->layers[layer]->up};
  };
  torch::optim::SGD first_inner(parameters(1), 0.1);
  torch::optim::SGD second_inner(parameters(2), 0.1);
  DistributedOptimizer first(first_inner, *model, layer_by_layer(Shard::Full));
  DistributedOptimizer second(second_inner, *model, layer_by_layer(Shard::Full));
  second.full_parameters([&] { model->layers[3]->base->weight.fill_(0.25); });
  for (int number = 0; number < 2; ++number) {
    model->forward(input(rank(), number)).sum().backward();
    first.step();
    second.step();
  }
  const at::Tensor weight = model->layers[3]->base->weight;
  EXPECT_TRUE(torch::equal(weight, torch::full_like(weight, 0.25)));
  // The checkpoint of either optimizer contains the whole model.
  const at::Tensor values = values_of(*model);
  for (DistributedOptimizer* const optimizer : {&first, &second}) {
    const CommonFolder folder;
    optimizer->save(folder.path());
    optimizer->save_full_state(folder.path() / "all.safetensors");
    for (const char* const file : {"", "all.safetensors"}) {
      AdaptedLayers loaded;
      for (at::Tensor& parameter : loaded->parameters()) parameter.data().zero_();
      torch::optim::SGD inner(loaded->parameters(), 0.1);
      DistributedOptimizer other(inner, *loaded, layer_by_layer(Shard::None));
      other.load(folder.path() / file);
      EXPECT_TRUE(torch::equal(values_of(*loaded), values)) << file;
      barrier();
    }
  }
}

TEST_F(FrozenCheckpointsTest, MasterCopies_AreThoseOfTrainedParameters) {
  const CommonFolder folder;
  for (const Shard shard : sharded_modes()) {
    AdaptedLayers model;
    model->to(torch::kBFloat16);
    AdamW inner(model->parameters(), AdamWOptions(1e-2));
    Options options = layer_by_layer(shard);
    options.master_weights = true;
    DistributedOptimizer optimizer(inner, *model, options);
    optimizer.zero_grad();
    model->forward(input(rank(), 0).to(torch::kBFloat16)).sum().backward();
    optimizer.step();
    optimizer.save_full_state(folder.path() / "all.safetensors");
    optimizer.save(folder.path());
    if (rank() == 0) {
      std::ifstream file(folder.path() / "all.safetensors");
      std::string header(4 << 10, '\0');
      file.read(header.data(), static_cast<std::streamsize>(header.size()));
      EXPECT_NE(header.find("\"master.layer1.up\""), std::string::npos);
      EXPECT_EQ(header.find("\"master.layer0.up\""), std::string::npos);
      EXPECT_EQ(header.find("\"master.layer1.base.weight\""), std::string::npos);
    }
    const at::Tensor values = values_of(*model);
    barrier();
    optimizer.load(folder.path());
    EXPECT_TRUE(torch::equal(values_of(*model), values));
  }
}

}  // namespace kolo::test::frozen_checkpoints_test
