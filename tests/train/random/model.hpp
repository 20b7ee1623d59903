#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

/// Random training programs: the model, drawn from a seed.
namespace kolo::random_training {

inline constexpr std::int64_t kWidth = 3;

enum class LayerKind {
  Plain,
  Tied,     ///< has the weight of an earlier plain layer, too
  Scalar,   ///< parameters of shape [] and [1]
  Empty,    ///< a parameter without elements
  Complex,  ///< complex parameters
  Unused,   ///< a parameter that no forward() uses
};

struct LayerPlan {
  LayerKind kind = LayerKind::Plain;
  int network = 0;
  int tied_to = -1;  ///< the layer whose weight a tied one has
  bool is_late = false;
};

/// One or two networks.
struct ModelPlan {
  int networks = 1;
  std::vector<LayerPlan> layers;

  int count() const { return static_cast<int>(layers.size()); }
  const LayerPlan& layer(int index) const { return layers[static_cast<std::size_t>(index)]; }
};

/// Of a layer: "layer2.bias". Tied weights have the name in their first layer.
using Parameter = std::pair<std::string, at::Tensor>;

/// Which layers a pass uses; a bit for each.
using Layers = std::uint32_t;
constexpr bool has(Layers layers, int layer) { return (layers >> layer & 1U) != 0; }

class Layer;

/// In float64, with values in closed form.
class Model {
 public:
  /// @param present the layers that are registered
  /// @param shift is added to all elements: ranks may begin with different ones
  Model(const ModelPlan& plan, Layers present, double shift);

  /// The sum of the loss over rows [n, kWidth], through the used layers of these networks, one
  /// after the other.
  /// @param failing a layer in whose backward() an exception is thrown
  at::Tensor loss(const at::Tensor& rows, Layers networks, Layers used, int failing = -1) const;

  torch::nn::Module& network(int index) { return *networks_[static_cast<std::size_t>(index)]; }
  /// Registers a layer with its network.
  void add(int layer);
  void add_buffer(double value);
  /// Buffers of network 0.
  std::vector<at::Tensor> buffers() const { return networks_.front()->buffers(); }
  Layers present() const { return present_; }

  /// Its own parameters: a tied weight is the other layer's.
  std::vector<Parameter> of_layer(int layer) const;
  /// Of all registered layers.
  std::vector<Parameter> parameters() const;
  at::Tensor named(const std::string& name) const;
  /// All registered parameters and buffers, concatenated, as real numbers.
  at::Tensor flat() const;

 private:
  const ModelPlan plan_;
  Layers present_ = 0;
  std::vector<std::shared_ptr<torch::nn::Module>> networks_;
  std::vector<std::shared_ptr<Layer>> layers_;
};

/// Rows of a batch, in closed form.
at::Tensor rows_of(int batch, int rank, std::int64_t count);

}  // namespace kolo::random_training
