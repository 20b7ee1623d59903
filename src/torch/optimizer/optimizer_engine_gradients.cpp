#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include <torch/nn/utils/clip_grad.h>

#include "kolo/error.hpp"
#include "torch/optimizer/optimizer_engine.hpp"

namespace kolo::tensors {

// --- what becomes of reduced gradients before a step ---

/// What this rank updates its parameters by: all gradients, or its pieces of them.
std::vector<at::Tensor> OptimizerEngine::own_gradients() const {
  std::vector<at::Tensor> gradients;
  for (const auto& reducer : reducers_) reducer->list_gradients(gradients);
  return gradients;
}

double OptimizerEngine::clip_grad_norm(double max_norm, double norm_type) {
  if (!(norm_type > 0.0)) {
    throw InvalidArgument("DistributedOptimizer: clip_grad_norm_ with norm_type " +
                          std::to_string(norm_type) + ", which must be positive");
  }
  synchronize();
  if (options_.shard != Shard::None) {
    announce({{"deed", "clip"}, {"max_norm", max_norm}, {"norm_type", norm_type}});
    return check_.clip(own_gradients(), max_norm, norm_type);
  }
  std::vector<at::Tensor> parameters;
  for (const auto& reducer : reducers_) {
    for (const ReducedParameter& parameter : reducer->parameters()) {
      parameters.push_back(parameter.tensor);
    }
  }
  return torch::nn::utils::clip_grad_norm_(parameters, max_norm, norm_type);
}

void OptimizerEngine::unscale(double scale) {
  make_gradients_ready();
  for (const auto& reducer : reducers_) {
    for (const ReducedParameter& parameter : reducer->parameters()) {
      if (parameter.tensor.scalar_type() != at::kHalf) continue;
      throw InvalidArgument("GradScaler: gradients of parameter '" + parameter.name +
                            "' are float16, in which they cannot be unscaled without loss. Keep "
                            "parameters in float32 and run the model under kolo::Autocast.");
    }
  }
  announce({{"deed", "unscale"}, {"scale", scale}});
  // Also where no gradient is divided: what a program or a bucket hook has made of the reduced ones
  // need not be the same on all ranks. Gradients that have not been reduced concern this rank
  // alone.
  check_.unscale(own_gradients(), scale, !step_->is_synchronized);
}

GradientCheck::Found OptimizerEngine::found_in_gradients() {
  if (!check_.has_found()) announce({{"deed", "find"}});
  return check_.found();
}

/// As after a step, but the wrapped optimizer has not been called, and nothing counts it.
void OptimizerEngine::skip_step() {
  announce({{"deed", "skip"}});
  if (options_.shard != Shard::None) drop_gradients();
  step_->is_synchronized = false;
}

}  // namespace kolo::tensors
