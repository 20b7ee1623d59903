#pragma once

#include <cstdint>
#include <memory>
#include <ostream>
#include <tuple>
#include <vector>

#include <torch/torch.h>

#include "train/models.hpp"

/// Models that training must support: recurrent, convolutional, with tied weights, with a module
/// that is called twice, with complex parameters.
namespace kolo::test {

/// The input of a row depends only on step and row, so the rows of a step can be divided among
/// ranks in any way.
class TrainedModel : public torch::nn::Module {
 public:
  /// The mean over rows.
  virtual at::Tensor loss(int step, std::int64_t first, std::int64_t rows) = 0;
  /// The output of one submodule, called by itself.
  virtual at::Tensor encoded(int step, std::int64_t first, std::int64_t rows) = 0;

 protected:
  /// The class of each of `places` in every row.
  static at::Tensor classes(int step, std::int64_t first, std::int64_t rows, std::int64_t places,
                            std::int64_t count) {
    const at::Tensor row = torch::arange(first, first + rows).unsqueeze(1);
    return (row * 3 + torch::arange(places).unsqueeze(0) * 5 + row * step + step).remainder(count);
  }
};

/// Classifies every frame of a sequence.
class SpeechModel final : public TrainedModel {
 public:
  SpeechModel() {
    torch::manual_seed(11);
    lstm_ = register_module(
        "lstm",
        torch::nn::LSTM(
            torch::nn::LSTMOptions(6, 5).num_layers(2).bidirectional(true).batch_first(true)));
    output_ = register_module("output", torch::nn::Linear(10, kClasses));
  }
  at::Tensor loss(int step, std::int64_t first, std::int64_t rows) override {
    return torch::cross_entropy_loss(
        output_->forward(encoded(step, first, rows)).view({-1, kClasses}),
        classes(step, first, rows, kFrames, kClasses).flatten());
  }
  at::Tensor encoded(int step, std::int64_t first, std::int64_t rows) override {
    const at::Tensor frames = batch_rows(step, first, rows, 6 * kFrames, torch::kFloat32);
    return std::get<0>(lstm_->forward(frames.view({rows, kFrames, 6})));
  }

 private:
  static constexpr std::int64_t kFrames = 5;
  static constexpr std::int64_t kClasses = 4;
  torch::nn::LSTM lstm_{nullptr};
  torch::nn::Linear output_{nullptr};
};

/// Classifies images. Its BatchNorm tracks statistics of this rank's rows only.
class ImageModel final : public TrainedModel {
 public:
  ImageModel() {
    torch::manual_seed(12);
    using torch::nn::Conv2dOptions;
    features_ = register_module(
        "features",
        torch::nn::Sequential(torch::nn::Conv2d(Conv2dOptions(1, 4, 3).padding(1).bias(false)),
                              torch::nn::BatchNorm2d(4), torch::nn::Tanh(),
                              torch::nn::Conv2d(Conv2dOptions(4, 5, 3).stride(2).bias(false)),
                              torch::nn::BatchNorm2d(5), torch::nn::Tanh()));
    output_ = register_module("output", torch::nn::Linear(20, kClasses));
  }
  at::Tensor loss(int step, std::int64_t first, std::int64_t rows) override {
    return torch::cross_entropy_loss(output_->forward(encoded(step, first, rows).flatten(1)),
                                     classes(step, first, rows, 1, kClasses).flatten());
  }
  at::Tensor encoded(int step, std::int64_t first, std::int64_t rows) override {
    const at::Tensor pixels = batch_rows(step, first, rows, 36, torch::kFloat32);
    return features_->forward(pixels.view({rows, 1, 6, 6}));
  }

 private:
  static constexpr std::int64_t kClasses = 3;
  torch::nn::Sequential features_{nullptr};
  torch::nn::Linear output_{nullptr};
};

/// Predicts tokens; the output layer shares the embedding's weight.
class TiedModel final : public TrainedModel {
 public:
  TiedModel() {
    torch::manual_seed(13);
    embedding_ = register_module("embedding", torch::nn::Embedding(kTokens, 6));
    hidden_ = register_module("hidden", torch::nn::Linear(6, 6));
    output_ = register_module("output", std::make_shared<Output>(embedding_->weight));
  }
  at::Tensor loss(int step, std::int64_t first, std::int64_t rows) override {
    return torch::cross_entropy_loss(
        output_->forward(torch::tanh(hidden_->forward(encoded(step, first, rows))))
            .view({-1, kTokens}),
        classes(step + 1, first, rows, 4, kTokens).flatten());
  }
  at::Tensor encoded(int step, std::int64_t first, std::int64_t rows) override {
    return embedding_->forward(classes(step, first, rows, 4, kTokens));
  }

 private:
  struct Output final : torch::nn::Module {
    explicit Output(const at::Tensor& tied) {
      weight = register_parameter("weight", tied);
      bias = register_parameter("bias", torch::zeros({kTokens}));
    }
    at::Tensor forward(const at::Tensor& input) const { return torch::linear(input, weight, bias); }
    at::Tensor weight, bias;
  };
  static constexpr std::int64_t kTokens = 11;
  torch::nn::Embedding embedding_{nullptr};
  torch::nn::Linear hidden_{nullptr};
  std::shared_ptr<Output> output_;
};

/// Calls a block twice in every forward pass.
class RepeatedModel final : public TrainedModel {
 public:
  RepeatedModel() {
    torch::manual_seed(14);
    block_ = register_module(
        "block", torch::nn::Sequential(torch::nn::Linear(8, 8), torch::nn::Tanh(),
                                       torch::nn::LayerNorm(torch::nn::LayerNormOptions({8}))));
    output_ = register_module("output", torch::nn::Linear(8, 3));
  }
  at::Tensor loss(int step, std::int64_t first, std::int64_t rows) override {
    const at::Tensor input = batch_rows(step, first, rows, 8, torch::kFloat32);
    return torch::mse_loss(output_->forward(block_->forward(encoded(step, first, rows) + input)),
                           input.narrow(1, 0, 3));
  }
  at::Tensor encoded(int step, std::int64_t first, std::int64_t rows) override {
    return block_->forward(batch_rows(step, first, rows, 8, torch::kFloat32));
  }

 private:
  torch::nn::Sequential block_{nullptr};
  torch::nn::Linear output_{nullptr};
};

/// Complex layers between real inputs and outputs. Its parameters have three dtypes.
class ComplexModel final : public TrainedModel {
 public:
  ComplexModel() {
    torch::manual_seed(15);
    weight_ = register_parameter("weight", torch::randn({6, 7}, torch::kComplexFloat));
    bias_ = register_parameter("bias", torch::randn({7}, torch::kComplexFloat));
    phase_ = register_parameter("phase", torch::randn({7}, torch::kComplexDouble));
    output_ = register_module("output", torch::nn::Linear(7, 3));
  }
  at::Tensor loss(int step, std::int64_t first, std::int64_t rows) override {
    const at::Tensor inner = torch::view_as_complex(encoded(step, first, rows));
    const at::Tensor turned = torch::real(inner.conj() * phase_ * inner + phase_);
    return torch::mse_loss(output_->forward(turned.to(torch::kFloat32)),
                           batch_rows(step, first, rows, 3, torch::kFloat32));
  }
  /// Real and imaginary parts of complex numbers.
  at::Tensor encoded(int step, std::int64_t first, std::int64_t rows) override {
    const at::Tensor parts = batch_rows(step, first, rows, 12, torch::kFloat32);
    const at::Tensor z = torch::view_as_complex(parts.view({rows, 6, 2})).matmul(weight_) + bias_;
    return torch::view_as_real(z / (z.abs() + 1));
  }

 private:
  at::Tensor weight_, bias_, phase_;
  torch::nn::Linear output_{nullptr};
};

struct ModelCase {
  const char* name;
  std::unique_ptr<TrainedModel> (*make)();
};
inline void PrintTo(const ModelCase& which, std::ostream* stream) { *stream << which.name; }

template <class Model>
std::unique_ptr<TrainedModel> make_model() {
  return std::make_unique<Model>();
}

inline std::vector<ModelCase> model_cases() {
  return {{"recurrent", make_model<SpeechModel>},
          {"convolutional", make_model<ImageModel>},
          {"tied", make_model<TiedModel>},
          {"repeated", make_model<RepeatedModel>},
          {"complex", make_model<ComplexModel>}};
}

}  // namespace kolo::test
