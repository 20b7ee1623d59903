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

/// Options of a parameter group of Muon. Names, defaults and meaning of those of matrices are those
/// of torch.optim.Muon; of the others, those of torch::optim::AdamW.
struct MuonOptions : torch::optim::OptimizerCloneableOptions<MuonOptions>, TensorNeeds {
  MuonOptions(double lr = 1e-3) : lr_(lr) {}
  TORCH_ARG(double, lr);
  TORCH_ARG(double, weight_decay) = 0.1;  ///< decoupled: lr * weight_decay of the parameter
  /// Whether parameters with two dimensions are matrices whose updates are orthogonalized. Set it
  /// to false for the group of embeddings and of the last layer, which AdamW trains better.
  TORCH_ARG(bool, orthogonalizes) = true;
  TORCH_ARG(double, momentum) = 0.95;
  TORCH_ARG(bool, nesterov) = true;
  TORCH_ARG(std::int64_t, ns_steps) = 5;  ///< Newton–Schulz iterations
  /// Of a matrix with r rows and c columns, `lr` is multiplied by sqrt(max(1, r / c)); if this is
  /// set, by 0.2 sqrt(max(r, c)), so that updates are as large as AdamW's and its `lr` fits.
  TORCH_ARG(bool, matches_adamw) = false;
  using Betas = std::tuple<double, double>;
  TORCH_ARG(Betas, betas) = { 0.9, 0.999 };  ///< of AdamW, for all other parameters
  TORCH_ARG(double, eps) = 1e-8;             ///< of AdamW

 public:
  bool needs_whole_tensors() const override { return orthogonalizes_; }
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  double get_lr() const override { return lr_; }
  void set_lr(double lr) override { lr_ = lr; }
};

/// What Muon keeps of a parameter: momentum_buffer of a matrix, the other fields of all others.
struct MuonParamState : torch::optim::OptimizerCloneableParamState<MuonParamState> {
  TORCH_ARG(at::Tensor, momentum_buffer);
  TORCH_ARG(std::int64_t, step) = 0;
  TORCH_ARG(at::Tensor, exp_avg);
  TORCH_ARG(at::Tensor, exp_avg_sq);

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

/// Muon (Jordan et al., 2024): the momentum of a matrix, orthogonalized by Newton–Schulz
/// iterations, is its update. Parameters that are no matrices are stepped by AdamW.
///
///   kolo::Muon muon({matrices, {embeddings, std::make_unique<kolo::MuonOptions>(options)}});
///   kolo::DistributedOptimizer optimizer(muon, *model, {.shard = kolo::Shard::Full});
///
/// An ordinary optimizer, with or without DistributedOptimizer, whose sharded modes give each
/// matrix to one rank. Iterations run in bfloat16 on a GPU, in float32 on CPUs, and in float64 for
/// float64 parameters. Throws c10::Error for options out of range, sparse gradients and complex
/// parameters.
class Muon : public torch::optim::Optimizer {
 public:
  explicit Muon(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                const MuonOptions& defaults = {});
  explicit Muon(std::vector<at::Tensor> parameters, const MuonOptions& defaults = {})
      : Muon({torch::optim::OptimizerParamGroup(std::move(parameters))}, defaults) {}

  at::Tensor step(LossClosure closure = nullptr) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  void step_matrix(at::Tensor& parameter, const MuonOptions& options);
  void step_adamw(at::Tensor& parameter, const MuonOptions& options);
  MuonParamState& state_for(const at::Tensor& parameter);
};

}  // namespace kolo
#pragma GCC visibility pop
