#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/optim/serialize.h>
#include <torch/torch.h>

#include "kolo/objects.hpp"
#include "kolo/torch/tensor_needs.hpp"
#include "train/sharding.hpp"
#include "train/training_fixture.hpp"

/// Shared code of the tests of training checkpoints.
namespace kolo::test::training_checkpoint_test {

namespace fs = std::filesystem;
using namespace torch::optim;

inline constexpr std::int64_t kWidth = 9;
inline constexpr std::int64_t kBatch = 24;

/// State of a class that LibTorch does not know: a number, a tensor with the parameter's shape, and
/// a tensor with a shape of its own.
class CountingState final : public OptimizerCloneableParamState<CountingState> {
 public:
  void serialize(torch::serialize::InputArchive& archive) override {
    c10::IValue value;
    archive.read("count", value);
    count = value.toInt();
    archive.read("sum", sum);
    archive.read("factor", factor);
  }
  void serialize(torch::serialize::OutputArchive& archive) const override {
    archive.write("count", c10::IValue(count));
    archive.write("sum", sum);
    archive.write("factor", factor);
  }
  std::int64_t count = 0;
  at::Tensor sum;
  at::Tensor factor = torch::tensor({4.0});
};
class CountingOptimizer final : public Optimizer, public Elementwise {
 public:
  explicit CountingOptimizer(Parameters parameters)
      : Optimizer(std::move(parameters), std::make_unique<OwnOptions>()) {}
  void save(torch::serialize::OutputArchive& archive) const override {
    torch::optim::serialize<CountingState, OwnOptions>(archive, *this);
  }
  void load(torch::serialize::InputArchive& archive) override {
    torch::optim::serialize<CountingState, OwnOptions>(archive, *this);
  }
  at::Tensor step(LossClosure = nullptr) override {
    ++steps;
    const at::NoGradGuard no_grad;
    for (auto& group : param_groups()) {
      for (at::Tensor& parameter : group.params()) {
        if (!parameter.grad().defined()) continue;
        auto& place = state()[parameter.unsafeGetTensorImpl()];
        if (!place) place = std::make_unique<CountingState>();
        auto& own = static_cast<CountingState&>(*place);
        if (!own.sum.defined()) own.sum = torch::zeros_like(parameter);
        own.sum.mul_(0.9).add_(parameter.grad());
        parameter.sub_(own.sum,
                       0.01 / static_cast<double>(++own.count) * own.factor.item<double>());
      }
    }
    return {};
  }
  int steps = 0;
};

inline std::vector<OptimizerCase> cases() {
  return {
      {"sgd", maker<SGD>(SGDOptions(0.05).momentum(0.9))},
      {"plain_sgd", maker<SGD>(SGDOptions(0.05))},
      {"adamw", maker<AdamW>(AdamWOptions(1e-2).eps(1e-4).amsgrad(true))},
      {"rmsprop", maker<RMSprop>(RMSpropOptions(1e-3).momentum(0.9).eps(1e-4).centered(true))},
      {"adagrad", maker<Adagrad>(AdagradOptions(1e-2).lr_decay(0.01))},
      {"own", [](Parameters all) { return std::make_unique<CountingOptimizer>(all); }},
  };
}

/// A model with a buffer, a frozen parameter, a parameter under two names, and an unused one.
struct Net : torch::nn::Module {
  explicit Net(std::uint64_t seed) {
    torch::manual_seed(seed);
    first = register_module("first", torch::nn::Linear(kWidth, kWidth));
    second = register_module("second", torch::nn::Linear(kWidth, kWidth));
    second->weight = second->register_parameter("tied", first->weight);
    frozen = register_parameter("frozen", torch::randn({kWidth}), false);
    unused = register_parameter("unused", torch::randn({5}));
    passes = register_buffer("passes", torch::zeros({2}, torch::kLong));
  }
  at::Tensor forward(const at::Tensor& rows) {
    passes[0] += 1;
    return second->forward(torch::tanh(first->forward(rows)) * frozen);
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
  at::Tensor frozen, unused, passes;
};

inline at::Tensor flat_of(const Net& net) {
  return torch::cat({net.first->weight.flatten(), net.first->bias, net.second->bias, net.frozen,
                     net.unused, net.passes.to(torch::kFloat)})
      .detach();
}

/// A model and its optimizer.
struct Training {
  Training(const OptimizerCase& which, Shard shard, std::uint64_t seed = 3)
      : net(std::make_shared<Net>(seed)), inner(which.make(distinct_parameters(*net))) {
    optimizer = std::make_unique<DistributedOptimizer>(*inner, *net, with(shard));
  }
  void run(int begin, int end) {
    for (int step = begin; step < end; ++step) {
      optimizer->zero_grad();
      const std::int64_t rows = kBatch / Runtime::current().size();
      const std::int64_t first = Runtime::current().rank() * rows;
      const at::Tensor batch = batch_rows(step, first, rows, kWidth, torch::kFloat32);
      net->forward(batch).pow(2).mean().backward();
      optimizer->step();
    }
  }
  std::shared_ptr<Net> net;
  std::unique_ptr<Optimizer> inner;
  std::unique_ptr<DistributedOptimizer> optimizer;
};

class CheckpointTest : public TrainingTest {
 protected:
  CheckpointTest() {
    folder_ = broadcast_object(
        (fs::temp_directory_path() / ("kolo-checkpoint-" + std::to_string(getpid()))).string(), 0);
  }
  ~CheckpointTest() override {
    barrier();
    if (runtime_.rank() == 0) fs::remove_all(folder_);
    barrier();
  }

  fs::path folder_;
};

}  // namespace kolo::test::training_checkpoint_test
