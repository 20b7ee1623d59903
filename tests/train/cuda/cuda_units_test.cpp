// Parameters gathered on use by operators on several streams, on the fake GPU.
#include <cstddef>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "train/adapted_layers.hpp"
#include "train/cuda/cuda_training.hpp"
#include "train/layer_units.hpp"

namespace kolo::test::cuda_units_test {

layer_units::Layers layers_of(const CudaRank& rank) {
  layer_units::Layers model;
  model->to(rank.device());
  return model;
}

DistributedOptimizer::Options layer_by_layer(CudaRank& rank) {
  DistributedOptimizer::Options options = layer_units::layer_by_layer(Shard::Full);
  options.process_set = &rank.world();
  return options;
}

/// A sharded model whose layers are units, and two more streams.
struct Units {
  explicit Units(CudaRank& rank)
      : own(current_stream(rank)),
        first(new_stream(rank)),
        second(new_stream(rank)),
        model(layers_of(rank)),
        sgd(model->parameters(), 0.1),
        optimizer(sgd, *model, layer_by_layer(rank)),
        rows(torch::ones({2, layer_units::kWidth}, rank.options())) {
    order(own, first);
    order(own, second);
  }

  at::Tensor use_on(const c10::Stream& stream, std::size_t layer) {
    const at::NoGradGuard no_grad;
    const c10::StreamGuard guard(stream);
    return model->layers[layer]->forward(rows);
  }
  void train() {
    model->forward(rows, layer_units::ascending()).sum().backward();
    optimizer.step();
  }

  const c10::Stream own, first, second;
  layer_units::Layers model;
  torch::optim::SGD sgd;
  DistributedOptimizer optimizer;
  const at::Tensor rows;
};

TEST(CudaUnitsTest, Units_MayBeUsedOnSeveralStreams) {
  run_cuda_ranks(2, [&](CudaRank& rank) {
    Units units(rank);
    const at::Tensor expected = units.use_on(units.first, 0);  // gathered there
    const at::Tensor got = units.use_on(units.second, 0);
    const std::vector<at::Tensor> others{
        units.use_on(units.first, 1),
        units.use_on(units.first, 2)};  // in layer 0's slot, which the second stream still uses
    order(units.first, units.own);
    order(units.second, units.own);
    EXPECT_TRUE(at::equal(got.cpu(), expected.cpu()));
    EXPECT_FALSE(at::equal(others[1].cpu(), expected.cpu()));
  });
}

TEST(CudaUnitsTest, MemoryOfMoreUnitsThanSlots_IsFreedAfterItsUse) {
  run_cuda_ranks(2, [&](CudaRank& rank) {
    Units units(rank);
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> weights;
    for (auto& layer : units.model->layers) weights.push_back(layer->weight);
    at::Tensor all;
    {
      const c10::StreamGuard guard(units.first);
      all = torch::cat(weights);
    }
    order(units.first, units.own);
    EXPECT_EQ(all.cpu().sizes(), (torch::IntArrayRef{layer_units::kLayers * layer_units::kWidth,
                                                     layer_units::kWidth}));
  });
}

// A slot's memory was allocated on another stream than the one that still uses it.
TEST(CudaUnitsTest, MemoryOfSlots_IsFreedAfterItsUseOnAnotherStream) {
  run_cuda_ranks(2, [&](CudaRank& rank) {
    const c10::Stream own = current_stream(rank);
    std::optional<Units> others(std::in_place, rank);
    std::optional<Units> units(std::in_place, rank);
    const c10::Stream first = units->first;
    const at::Tensor rows = units->rows;  // that stream reads the rows, too
    const at::Tensor used = units->use_on(first, 0);
    rank.await_released_batches();  // which own the slots, too
    units.reset();
    others.reset();  // frees units that are no longer used
    order(first, own);
    EXPECT_TRUE(used.isfinite().all().item<bool>());
  });
}

TEST(CudaUnitsTest, SavingTheModelWithinFullParameters_WritesItsValues) {
  run_cuda_ranks(2, [&](CudaRank& rank) {
    Units units(rank);
    const at::Tensor values = flat(*units.model).cpu();
    std::stringstream file;
    units.optimizer.full_parameters([&] { torch::save(units.model, file); });
    layer_units::Layers loaded;
    torch::load(loaded, file, at::kCPU);
    EXPECT_TRUE(at::equal(flat(*loaded), values));
  });
}

TEST(CudaUnitsTest, Destruction_IsPossibleWhileAUnitIsGathered) {
  run_cuda_ranks(2, [&](CudaRank& rank) {
    const Units others(rank);  // destroyed last: frees units that are no longer used
    Units units(rank);
    units.train();
    units.use_on(units.own, 0);  // prefetches layer 1
  });
}

/// Layers with the values of `values`. Not drawn at random, because ranks are threads that share
/// one generator.
adapted_layers::AdaptedLayers adapted_layers_of(const CudaRank& rank,
                                                const adapted_layers::AdaptedLayers& values) {
  const at::NoGradGuard no_grad;
  adapted_layers::AdaptedLayers model;
  const auto own = model->parameters(), wanted = values->parameters();
  for (std::size_t i = 0; i < own.size(); ++i) at::Tensor(own[i]).copy_(wanted[i]);
  model->to(rank.device());
  return model;
}

TEST(CudaUnitsTest, FrozenLayers_TrainAlike) {
  const adapted_layers::AdaptedLayers values;
  for (const bool offload : {false, true}) {
    run_cuda_ranks(2, [&](CudaRank& rank) {
      const auto train = [&](DistributedOptimizer::Options options) {
        auto model = adapted_layers_of(rank, values);
        torch::optim::SGD sgd(model->parameters(), 0.1);
        options.process_set = &rank.world();
        DistributedOptimizer optimizer(sgd, *model, options);
        for (int step = 0; step < 3; ++step) {
          optimizer.zero_grad();
          model->forward(layer_units::input(rank.rank(), step).to(rank.device())).sum().backward();
          optimizer.step();
        }
        return flat(*model).cpu();
      };
      DistributedOptimizer::Options full = adapted_layers::layer_by_layer(Shard::Full);
      full.offload = offload;
      const at::Tensor whole = train(adapted_layers::layer_by_layer(Shard::None));
      EXPECT_LT(largest_difference(train(full), whole), 1e-5);
      EXPECT_FALSE(at::equal(whole, flat(*values)));
    });
  }
}

}  // namespace kolo::test::cuda_units_test
