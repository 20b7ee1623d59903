#pragma once

#include <cstdint>

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

namespace gpt {

struct ModelOptions {
  std::int64_t layers = 3;
  std::int64_t width = 128;  ///< a multiple of `heads`
  std::int64_t heads = 4;
  std::int64_t context = 64;  ///< longest input in bytes
};

/// A byte-level GPT: learned positions, pre-norm blocks, causal attention, GELU, and an output
/// layer that shares its weights with the byte embedding. Linear layers have no biases: that of the
/// attention's keys cannot change the output, so its gradient is rounding noise, which Adam would
/// turn into steps of full size.
class GptImpl : public torch::nn::Module {
 public:
  explicit GptImpl(const ModelOptions& options);

  /// Logits [batch, length, 256] for what follows each byte of `bytes` [batch, length], int64, on
  /// the model's device.
  at::Tensor forward(const at::Tensor& bytes);

  const ModelOptions& options() const { return options_; }
  at::Device device() const { return position_embedding_.device(); }

 private:
  ModelOptions options_;
  torch::nn::Embedding byte_embedding_;
  at::Tensor position_embedding_;
  torch::nn::ModuleList blocks_;
  torch::nn::LayerNorm final_norm_;
};
TORCH_MODULE(Gpt);

/// Mean of -ln P, in nats per byte, that `model` assigns to bytes 1 … length of `windows` [batch,
/// length + 1], int64, on any device, each given the bytes before it.
at::Tensor next_byte_loss(Gpt& model, const at::Tensor& windows);

}  // namespace gpt
