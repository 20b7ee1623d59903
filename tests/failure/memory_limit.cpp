// Trains a model with 64 MiB of parameters, under a memory limit set by memory_limit_test.py:
//   mpirun -np 4 memory_limit none|full
#include <cmath>
#include <iostream>
#include <string>

#include <torch/torch.h>

#include "kolo/kolo.hpp"

namespace {

constexpr int kLayers = 16;
constexpr std::int64_t kWidth = 1024;

struct DeepImpl : torch::nn::Module {
  DeepImpl() {
    for (int i = 0; i < kLayers; ++i) {
      layers->push_back(torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false)));
    }
    register_module("layers", layers);
  }
  at::Tensor forward(at::Tensor values) {
    for (const auto& layer : *layers) {
      values = torch::tanh(layer->as<torch::nn::Linear>()->forward(values));
    }
    return values;
  }
  torch::nn::ModuleList layers;
};
TORCH_MODULE(Deep);

}  // namespace

int main(int argc, char** argv) {
  const kolo::Runtime runtime;
  const bool is_full = argc > 1 && std::string(argv[1]) == "full";
  Deep model = is_full ? kolo::deferred<Deep>() : Deep();
  torch::optim::AdamW adamw(model->parameters(), 1e-3);
  kolo::DistributedOptimizer optimizer(adamw, *model,
                                       {.shard = is_full ? kolo::Shard::Full : kolo::Shard::None});
  double loss = 0;
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const at::Tensor value = model->forward(torch::ones({1, kWidth})).pow(2).mean();
    value.backward();
    optimizer.step();
    loss = value.item<double>();
  }
  if (kolo::rank() == 0) std::cout << "trained, loss " << loss << std::endl;
  return std::isfinite(loss) ? 0 : 1;
}
