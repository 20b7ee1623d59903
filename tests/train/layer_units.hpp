#pragma once

#include <cstddef>
#include <numeric>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "train/sharding.hpp"

/// A model whose layers are units, gathered one by one.
namespace kolo::test::layer_units {

inline constexpr std::int64_t kWidth = 24;
inline constexpr std::size_t kLayers = 6;

/// Linear layers, each a unit.
class LayersImpl : public torch::nn::Module {
 public:
  LayersImpl() {
    torch::manual_seed(11);
    for (std::size_t i = 0; i < kLayers; ++i) {
      layers.push_back(
          register_module("layer" + std::to_string(i), torch::nn::Linear(kWidth, kWidth)));
    }
  }
  at::Tensor forward(at::Tensor values, const std::vector<std::size_t>& order) {
    for (const std::size_t i : order) values = torch::tanh(layers[i](values));
    return values;
  }
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(Layers);

/// The parameters of each layer.
template <class Model>
std::vector<std::vector<at::Tensor>> units_of(const Model& model) {
  std::vector<std::vector<at::Tensor>> units;
  for (const auto& layer : model.layers) units.push_back(layer->parameters());
  return units;
}

inline std::vector<std::size_t> ascending() {
  std::vector<std::size_t> order(kLayers);
  std::iota(order.begin(), order.end(), std::size_t{0});
  return order;
}

inline at::Tensor input(int rank, int step) {
  return batch_rows(step, 4 * rank, 4, kWidth, torch::kFloat);
}

inline DistributedOptimizer::Options layer_by_layer(Shard shard) {
  DistributedOptimizer::Options options;
  options.shard = shard;
  options.bucket_bytes = kWidth * (kWidth + 1) * sizeof(float);
  return options;
}

/// Whether the tensor has memory. Does not access its elements, which would throw if it has none.
inline bool is_in_memory(const at::Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks() != nullptr;
}

}  // namespace kolo::test::layer_units
