// Training in which one rank is slow in backward and another in loading its data, for kolo-trace.
#include <chrono>
#include <fstream>
#include <string>
#include <thread>

#include <ATen/Functions.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "insight/metrics_file.hpp"
#include "kolo/kolo.hpp"

namespace {

using namespace std::chrono_literals;
namespace nn = torch::nn;

constexpr int kSlowInBackward = 2;
constexpr int kSlowInData = 1;
constexpr int kSteps = 40;
constexpr int kWidth = 256;

at::Tensor load_batch(int rank) {
  const kolo::MarkedSpan span("load batch");
  if (rank == kSlowInData) std::this_thread::sleep_for(15ms);
  return at::ones({4, kWidth}) * (rank + 1);
}

}  // namespace

/// slow_ranks <folder>: writes the metrics of each rank there; KOLO_METRICS removes its files.
int main(int, char** arguments) {
  const kolo::Runtime runtime;
  at::set_num_threads(1);
  nn::Sequential model;
  for (int i = 0; i < 6; ++i) {
    model->push_back(nn::Linear(kWidth, kWidth));
    model->push_back(nn::Tanh());
  }
  torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.01));
  kolo::DistributedOptimizer optimizer(sgd, *model, {.bucket_bytes = 512 << 10});
  kolo::broadcast_parameters(*model, 0);
  if (runtime.rank() == kSlowInBackward) {
    model->parameters()[6].register_hook([](const at::Tensor& gradient) {
      std::this_thread::sleep_for(30ms);
      return gradient;
    });
  }
  for (int step = 0; step < kSteps; ++step) {
    const at::Tensor batch = load_batch(runtime.rank());
    optimizer.zero_grad();
    const at::Tensor loss = nn::functional::mse_loss(model->forward(batch), at::zeros_like(batch));
    loss.backward();
    optimizer.step();
  }
  std::ofstream(arguments[1] + ("/" + std::to_string(runtime.rank())) + ".prom")
      << kolo::insight::to_prometheus(kolo::metrics(), runtime.rank());
  return 0;
}
