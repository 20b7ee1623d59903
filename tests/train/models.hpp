#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <torch/torch.h>

/// Small models and data in closed form for the tests of the training layer.
namespace kolo::test {

/// A multi-layer perceptron whose weights are the same on every rank.
inline torch::nn::Sequential make_mlp(torch::ScalarType type, std::int64_t width = 9,
                                      int layers = 4) {
  torch::manual_seed(17);
  torch::nn::Sequential model;
  for (int i = 0; i < layers; ++i) {
    model->push_back(torch::nn::Linear(width, width));
    model->push_back(torch::nn::Tanh());
  }
  model->push_back(torch::nn::Linear(width, 3));
  model->to(type);
  return model;
}

/// Rows of the batch of one step: a function of step, row and column only.
inline at::Tensor batch_rows(int step, std::int64_t first, std::int64_t rows, std::int64_t columns,
                             torch::ScalarType type) {
  const at::Tensor row = torch::arange(first, first + rows, torch::kFloat64).unsqueeze(1);
  const at::Tensor column = torch::arange(columns, torch::kFloat64).unsqueeze(0);
  return (row * 0.7 + column * 1.3 + step * 0.37 + row * column * 0.11).sin().to(type);
}

enum class Algorithm { Sgd, Adam, AdamW, RmsProp };

inline std::string name_of(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::Sgd: return "sgd";
    case Algorithm::Adam: return "adam";
    case Algorithm::AdamW: return "adamw";
    case Algorithm::RmsProp: return "rmsprop";
  }
  return {};
}

inline std::unique_ptr<torch::optim::Optimizer> make_optimizer(Algorithm algorithm,
                                                               std::vector<at::Tensor> parameters) {
  using namespace torch::optim;
  // eps 1e-4: a gradient that is zero in theory is rounding noise, which Adam would amplify.
  switch (algorithm) {
    case Algorithm::Sgd:
      return std::make_unique<SGD>(std::move(parameters), SGDOptions(0.05).momentum(0.9));
    case Algorithm::Adam:
      return std::make_unique<Adam>(std::move(parameters), AdamOptions(1e-2).eps(1e-4));
    case Algorithm::AdamW:
      return std::make_unique<AdamW>(std::move(parameters), AdamWOptions(1e-2).eps(1e-4));
    case Algorithm::RmsProp:
      return std::make_unique<RMSprop>(std::move(parameters),
                                       RMSpropOptions(1e-3).momentum(0.9).eps(1e-4));
  }
  return nullptr;
}

inline at::Tensor loss_of(torch::nn::Sequential& model, const at::Tensor& rows) {
  return torch::mse_loss(model->forward(rows), rows.narrow(1, 0, 3));
}

inline double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

/// All parameters, concatenated.
inline at::Tensor flat(const torch::nn::Module& model) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& parameter : model.parameters()) {
    parts.push_back(parameter.detach().flatten());
  }
  return torch::cat(parts);
}

}  // namespace kolo::test
