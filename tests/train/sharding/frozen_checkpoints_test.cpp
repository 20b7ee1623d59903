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

TEST_F(FrozenCheckpointsTest, Checkpoints_HaveTheSameFilesInAllModes) {
  const CommonFolder folder;
  const auto with_model = [&](Shard shard, const auto& use) {
    AdaptedLayers model;
    AdamW inner(model->parameters(), AdamWOptions(1e-2));
    DistributedOptimizer optimizer(inner, *model, layer_by_layer(shard));
    use(model, optimizer);
    barrier();
  };
  const auto write_parameters = [&](AdaptedLayers& model, DistributedOptimizer& optimizer,
                                    double first) {
    optimizer.full_parameters([&] {
      const at::NoGradGuard no_grad;
      for (const at::Tensor& parameter : model->parameters()) {
        at::Tensor(parameter).copy_(
            torch::arange(parameter.numel(), torch::kFloat).add(first++).view(parameter.sizes()));
      }
    });
  };
  for (const Shard saved : {Shard::Full, Shard::None}) {
    at::Tensor values;
    with_model(saved, [&](AdaptedLayers& model, DistributedOptimizer& optimizer) {
      write_parameters(model, optimizer, 3);
      optimizer.save(folder.path());
      optimizer.save_full_state(folder.path() / "all.safetensors");
      optimizer.full_parameters([&] {
        if (rank() == 0) torch::save(model, (folder.path() / "model.pt").string());
      });
      values = values_of(*model);
    });
    for (const Shard loaded : {Shard::Full, Shard::None}) {
      for (const char* const file : {"", "all.safetensors", "model.pt"}) {
        with_model(loaded, [&](AdaptedLayers& model, DistributedOptimizer& optimizer) {
          optimizer.load(folder.path() / file);
          EXPECT_TRUE(torch::equal(values_of(*model), values)) << file;
          step(model, optimizer, 0);  // loading is not taken for a write by the program
        });
      }
    }
  }
}

TEST_F(FrozenCheckpointsTest, UnfrozenLayers_TrainAndAreSaved) {
  const CommonFolder folder;
  expect_trained_alike([](AdaptedLayers& model, DistributedOptimizer&, int number) {
    model->layers[3]->base->weight.set_requires_grad(number >= 2);
    model->layers[4]->up.set_requires_grad(number != 3);
  });
  const auto train_and_save = [&](Shard shard) {
    return train(layer_by_layer(shard),
                 [&](AdaptedLayers& model, DistributedOptimizer& optimizer, int number) {
                   model->layers[3]->base->weight.set_requires_grad(number >= 2);
                   if (number == 4) optimizer.save(folder.path());
                 });
  };
  const auto load = [&](Shard shard) {
    AdaptedLayers model;
    model->layers[3]->base->weight.set_requires_grad(true);
    AdamW inner(model->parameters(), AdamWOptions(1e-2).eps(1e-4));
    DistributedOptimizer optimizer(inner, *model, layer_by_layer(shard));
    optimizer.load(folder.path());
    step(model, optimizer, 4);
    return values_of(*model);
  };
  const at::Tensor trained = train_and_save(Shard::Full);
  expect_alike(load(Shard::Full), trained);
  expect_alike(load(Shard::None), trained);
}

/// Two weights; steps 2 and 3 train only the first.
struct TwoWeights {
  explicit TwoWeights(Shard shard, bool has_second = true)
      : inner(has_second ? Parameters{first, second} : Parameters{first},
              AdamWOptions(1e-2).eps(1e-4)),
        optimizer(inner, {{"first", first}, {"second", second}}, with(shard)) {}
  void run(int begin, int end) {
    for (int step = begin; step < end; ++step) {
      const bool is_frozen = step == 2 || step == 3;
      second.set_requires_grad(!is_frozen);
      optimizer.zero_grad();
      const at::Tensor wanted = torch::arange(kElements, torch::kFloat64)
                                    .mul(0.01 * (Runtime::current().rank() + 1))
                                    .add(step);
      at::Tensor loss = (first - wanted).square().sum();
      if (!is_frozen) loss = loss + (second + wanted).square().sum();
      loss.backward();
      optimizer.step();
    }
  }
  at::Tensor values() const { return torch::cat({first.detach(), second.detach()}).clone(); }

  static constexpr std::int64_t kElements = 301;
  at::Tensor first = torch::ones({kElements}, torch::kFloat64).requires_grad_();
  at::Tensor second = torch::zeros({kElements}, torch::kFloat64);
  AdamW inner;
  DistributedOptimizer optimizer;
};

TEST_F(FrozenCheckpointsTest, StateOfAParameterThatIsFrozenMeanwhile_IsResumed) {
  const CommonFolder folder;
  TwoWeights whole(Shard::None);
  whole.run(0, 6);
  for (const Shard saved : all_modes()) {
    TwoWeights before(saved);
    before.run(0, 4);
    before.optimizer.save(folder.path() / "first");
    for (const Shard loaded : all_modes()) {
      TwoWeights between(loaded);  // it only loads and saves
      between.optimizer.load(folder.path() / "first");
      between.optimizer.save(folder.path() / "second");
      for (const char* const place : {"first", "second"}) {
        TwoWeights after(loaded);
        after.optimizer.load(folder.path() / place);
        after.run(4, 6);
        expect_alike(after.values(), whole.values(), place);
      }
    }
  }
}

TEST_F(FrozenCheckpointsTest, StateOfAParameterInNoGroup_IsNotDroppedSilently) {
  const CommonFolder folder;
  for (const Shard mode : all_modes()) {
    TwoWeights before(mode);
    before.run(0, 4);
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
