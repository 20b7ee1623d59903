// Models on the fake CUDA back end train as on the CPU, on several ranks simultaneously.
#include <memory>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "train/cuda/fake_cuda_fixture.hpp"

namespace kolo::test::fake_cuda_training_test {

torch::nn::Sequential perceptron() {
  return torch::nn::Sequential(torch::nn::Linear(16, 12), torch::nn::ReLU(),
                               torch::nn::LayerNorm(torch::nn::LayerNormOptions({12})),
                               torch::nn::Linear(12, 4));
}

torch::nn::Sequential convolutional() {
  return torch::nn::Sequential(
      torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 6, 3).padding(1)), torch::nn::BatchNorm2d(6),
      torch::nn::ReLU(), torch::nn::MaxPool2d(2), torch::nn::Flatten(), torch::nn::Linear(24, 4));
}

struct Training {
  std::string name;
  torch::nn::Sequential (*make)();
  std::vector<std::int64_t> input;
  bool is_adam;
};

void PrintTo(const Training& training, std::ostream* out) { *out << training.name; }

std::unique_ptr<torch::optim::Optimizer> optimizer_of(const Training& training,
                                                      torch::nn::Sequential& model) {
  if (training.is_adam) {
    return std::make_unique<torch::optim::AdamW>(model->parameters(),
                                                 torch::optim::AdamWOptions(0.02));
  }
  return std::make_unique<torch::optim::SGD>(model->parameters(),
                                             torch::optim::SGDOptions(0.1).momentum(0.9));
}

/// The state of `model` after training on `device`.
std::vector<at::Tensor> train(const Training& training, torch::nn::Sequential model,
                              const at::Tensor& input, at::Device device) {
  model->to(device);
  const auto optimizer = optimizer_of(training, model);
  const at::Tensor on_device = input.to(device);
  const at::Tensor labels = torch::arange(input.size(0), at::kLong).remainder(4).to(device);
  for (int step = 0; step < 4; ++step) {
    optimizer->zero_grad();
    torch::nn::functional::cross_entropy(model->forward(on_device), labels).backward();
    torch::nn::utils::clip_grad_norm_(model->parameters(), 1.0);
    optimizer->step();
  }
  std::vector<at::Tensor> state;
  for (const at::Tensor& parameter : model->parameters()) state.push_back(parameter.cpu());
  for (const at::Tensor& buffer : model->buffers()) state.push_back(buffer.cpu());
  return state;
}

torch::nn::Sequential copy_of(torch::nn::Sequential& model) {
  return torch::nn::Sequential(
      std::dynamic_pointer_cast<torch::nn::SequentialImpl>(model->clone()));
}

class CudaTrainingTest : public testing::TestWithParam<Training> {};

TEST_P(CudaTrainingTest, Training_EndsWhereItDoesOnTheCpu) {
  constexpr int kRanks = 3;
  torch::manual_seed(1);
  std::vector<torch::nn::Sequential> models;
  std::vector<at::Tensor> inputs;
  std::vector<std::vector<at::Tensor>> expected;
  for (int rank = 0; rank < kRanks; ++rank) {
    models.push_back(GetParam().make());
    inputs.push_back(torch::randn(GetParam().input));
    expected.push_back(train(GetParam(), copy_of(models.back()), inputs.back(), at::kCPU));
  }
  run_cuda_ranks(kRanks, [&](CudaRank& rank) {
    const auto own = static_cast<std::size_t>(rank.rank());
    const auto got = train(GetParam(), models[own], inputs[own], rank.device());
    ASSERT_EQ(got.size(), expected[own].size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_TRUE(at::allclose(got[i], expected[own][i], 1e-4, 1e-5)) << i;
    }
    models[own] = nullptr;
  });
}

INSTANTIATE_TEST_SUITE_P(
    , CudaTrainingTest,
    testing::Values(Training{"PerceptronSgd", &perceptron, {8, 16}, false},
                    Training{"PerceptronAdamW", &perceptron, {8, 16}, true},
                    Training{"ConvolutionalSgd", &convolutional, {5, 1, 4, 4}, false},
                    Training{"ConvolutionalAdamW", &convolutional, {5, 1, 4, 4}, true}),
    [](const testing::TestParamInfo<Training>& tried) { return tried.param.name; });

TEST(CudaBackwardTest, Backward_RunsOnTheStreamOfForward) {
  run_cuda_ranks(2, [](CudaRank& rank) {
    const c10::impl::VirtualGuardImpl cuda(c10::kCUDA);
    const c10::Stream own = cuda.getStream(rank.device());
    const c10::Stream other = cuda.getNewStream(rank.device());
    const at::Tensor x = torch::ones({3}, rank.options()).requires_grad_();
    c10::Stream seen = own;
    x.register_hook([&](const at::Tensor&) { seen = cuda.getStream(rank.device()); });
    c10::Event event(c10::kCUDA);
    event.record(own);
    event.block(other);
    {
      const c10::StreamGuard guard(other);
      (x * x).sum().backward();
      EXPECT_EQ(seen, other);
      EXPECT_EQ(x.grad().sum().item<float>(), 6.0F);
    }
  });
}

}  // namespace kolo::test::fake_cuda_training_test
