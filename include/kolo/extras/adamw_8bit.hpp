#pragma once

#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/serialize.h>

#include "kolo/torch/tensor_needs.hpp"

#pragma GCC visibility push(default)
namespace kolo {

/// Options of a parameter group of AdamW8bit: names and defaults of torch::optim::AdamWOptions.
struct AdamW8bitOptions : torch::optim::OptimizerCloneableOptions<AdamW8bitOptions>, TensorNeeds {
  AdamW8bitOptions(double lr = 1e-3) : lr_(lr) {}
  TORCH_ARG(double, lr);
  /// false: the group is stepped as by AdamW, with state in the parameters' type, and sharded in
  /// pieces: for embeddings, which are larger than a rank's share of the parameters.
  TORCH_ARG(bool, has_8bits) = true;
  using Betas = std::tuple<double, double>;
  TORCH_ARG(Betas, betas) = { 0.9, 0.999 };
  TORCH_ARG(double, eps) = 1e-8;
  TORCH_ARG(double, weight_decay) = 1e-2;

 public:
  bool needs_whole_tensors() const override { return has_8bits_; }
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  double get_lr() const override { return lr_; }
  void set_lr(double lr) override { lr_ = lr; }
};

/// Means of gradients and of their squares. With 8 bits, an element is a level of a logarithmic
/// scale below the block's greatest magnitude, which is in exp_avg_max or exp_avg_sq_max [blocks].
struct AdamW8bitParamState : torch::optim::OptimizerCloneableParamState<AdamW8bitParamState> {
  TORCH_ARG(std::int64_t, step) = 0;
  TORCH_ARG(at::Tensor, exp_avg);         ///< int8, or of the parameter's type
  TORCH_ARG(at::Tensor, exp_avg_sq);      ///< uint8, or of the parameter's type
  TORCH_ARG(at::Tensor, exp_avg_max);     ///< float32, or undefined
  TORCH_ARG(at::Tensor, exp_avg_sq_max);  ///< float32, or undefined

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

/// AdamW whose state takes about 2 bytes for each element of a parameter instead of 8: in blocks of
/// 256 elements, as in "8-bit Optimizers via Block-wise Quantization" (Dettmers et al., 2022).
/// Parameters of fewer than 4,096 elements keep theirs as it is: biases and weights of
/// normalization layers, whose state is small.
///
/// An ordinary optimizer, with or without DistributedOptimizer, whose sharded modes give each
/// parameter with 8 bits to one rank, so that blocks are the same in all of them. Throws c10::Error
/// for options out of range, sparse gradients and complex parameters. A gradient that is not finite
/// spoils its block, not one element.
class AdamW8bit : public torch::optim::Optimizer {
 public:
  explicit AdamW8bit(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                     const AdamW8bitOptions& defaults = {});
  explicit AdamW8bit(std::vector<at::Tensor> parameters, const AdamW8bitOptions& defaults = {})
      : AdamW8bit({torch::optim::OptimizerParamGroup(std::move(parameters))}, defaults) {}

  at::Tensor step(LossClosure closure = nullptr) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
};

}  // namespace kolo
#pragma GCC visibility pop
