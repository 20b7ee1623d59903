#include "common/model.hpp"

#include <span>

#include <ATen/core/Tensor.h>

#include "train/wrapped/fused_step.hpp"

namespace examples {

std::int64_t count_parameters(const torch::nn::Module& model) {
  std::int64_t count = 0;
  for (const at::Tensor& parameter : model.parameters()) count += parameter.numel();
  return count;
}

Digest digest_of_parameters(const torch::nn::Module& model) {
  Digest digest;
  for (const at::Tensor& parameter : model.parameters()) {
    const at::Tensor whole = parameter.detach().cpu().contiguous();
    digest.add(std::span(static_cast<const std::byte*>(whole.const_data_ptr()), whole.nbytes()));
  }
  return digest;
}

void step_alone(torch::optim::Optimizer& optimizer, bool fused) {
  if (fused) {
    kolo::train::fused_step(optimizer);
  } else {
    optimizer.step();
  }
}

}  // namespace examples
