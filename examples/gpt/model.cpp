#include "gpt/model.hpp"

#include <cmath>

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/linear.h>

namespace gpt {
namespace {

constexpr std::int64_t kBytes = 256;
constexpr double kInitialSpread = 0.02;

torch::nn::Linear linear_without_bias(std::int64_t inputs, std::int64_t outputs, double spread) {
  torch::nn::Linear linear(torch::nn::LinearOptions(inputs, outputs).bias(false));
  torch::nn::init::normal_(linear->weight, 0.0, spread);
  return linear;
}

torch::nn::LayerNorm layer_norm(std::int64_t width) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}));
}

class BlockImpl : public torch::nn::Module {
 public:
  explicit BlockImpl(const ModelOptions& options)
      : heads_(options.heads),
        attention_norm_(register_module("attention_norm", layer_norm(options.width))),
        mlp_norm_(register_module("mlp_norm", layer_norm(options.width))) {
    const std::int64_t width = options.width;
    // Every block adds two outputs to the residual stream, whose variance must not grow with depth.
    const double spread_out = kInitialSpread / std::sqrt(2.0 * static_cast<double>(options.layers));
    query_key_value_ =
        register_module("query_key_value", linear_without_bias(width, 3 * width, kInitialSpread));
    attention_out_ =
        register_module("attention_out", linear_without_bias(width, width, spread_out));
    mlp_in_ = register_module("mlp_in", linear_without_bias(width, 4 * width, kInitialSpread));
    mlp_out_ = register_module("mlp_out", linear_without_bias(4 * width, width, spread_out));
  }

  at::Tensor forward(const at::Tensor& input) {
    const at::Tensor middle = input + attention(attention_norm_(input));
    return middle + mlp_out_(at::gelu(mlp_in_(mlp_norm_(middle))));
  }

 private:
  at::Tensor attention(const at::Tensor& input) {
    const std::int64_t batch = input.size(0);
    const std::int64_t length = input.size(1);
    const auto parts = query_key_value_(input)
                           .view({batch, length, 3, heads_, input.size(2) / heads_})
                           .permute({2, 0, 3, 1, 4})
                           .unbind();
    const at::Tensor mixed = at::scaled_dot_product_attention(
        parts[0], parts[1], parts[2], /*attn_mask=*/{}, /*dropout_p=*/0.0, /*is_causal=*/true);
    return attention_out_(mixed.transpose(1, 2).reshape({batch, length, input.size(2)}));
  }

  std::int64_t heads_;
  torch::nn::LayerNorm attention_norm_;
  torch::nn::LayerNorm mlp_norm_;
  torch::nn::Linear query_key_value_{nullptr};
  torch::nn::Linear attention_out_{nullptr};
  torch::nn::Linear mlp_in_{nullptr};
  torch::nn::Linear mlp_out_{nullptr};
};
TORCH_MODULE(Block);

}  // namespace

GptImpl::GptImpl(const ModelOptions& options)
    : options_(options),
      byte_embedding_(
          register_module("byte_embedding", torch::nn::Embedding(kBytes, options.width))),
      position_embedding_(
          register_parameter("position_embedding", at::empty({options.context, options.width}))),
      final_norm_(layer_norm(options.width)) {
  torch::nn::init::normal_(byte_embedding_->weight, 0.0, kInitialSpread);
  torch::nn::init::normal_(position_embedding_, 0.0, kInitialSpread);
  for (std::int64_t i = 0; i < options.layers; ++i) blocks_->push_back(Block(options));
  register_module("blocks", blocks_);
  register_module("final_norm", final_norm_);
}

at::Tensor GptImpl::forward(const at::Tensor& bytes) {
  at::Tensor state = byte_embedding_(bytes) + position_embedding_.narrow(0, 0, bytes.size(1));
  for (const auto& block : *blocks_) state = block->as<Block>()->forward(state);
  return at::linear(final_norm_(state), byte_embedding_->weight);
}

at::Tensor next_byte_loss(Gpt& model, const at::Tensor& windows) {
  const std::int64_t length = windows.size(1) - 1;
  const at::Tensor bytes = windows.to(model->device());
  const at::Tensor logits = model(bytes.narrow(1, 0, length));
  return at::cross_entropy_loss(logits.flatten(0, 1), bytes.narrow(1, 1, length).flatten());
}

}  // namespace gpt
