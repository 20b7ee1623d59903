#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/torch/distributed_optimizer.hpp"
#include "train/cuda/fake_cuda_fixture.hpp"
#include "train/models.hpp"

/// Shared code of the tests of training on CUDA tensors.
namespace kolo::test {

inline constexpr std::int64_t kRows = 2;  // of each rank
inline constexpr std::int64_t kWidth = 9;
inline constexpr int kSteps = 6;

inline DistributedOptimizer::Options options_of(CudaRank& rank, Shard shard) {
  DistributedOptimizer::Options options;
  options.shard = shard;
  options.bucket_bytes = 500;  // several buckets
  options.process_set = &rank.world();
  return options;
}

inline c10::Stream current_stream(const CudaRank& rank) {
  return c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(rank.device());
}

inline void order(const c10::Stream& first, const c10::Stream& then) {
  c10::Event event(c10::kCUDA);
  event.record(first);
  event.block(then);
}

inline at::Tensor rows_of(const CudaRank& rank, int step) {
  return batch_rows(step, kRows * rank.rank(), kRows, kWidth, at::kFloat).to(rank.device());
}

/// Thread-safe: all ranks are threads here and share one random generator.
inline torch::nn::Sequential make_model() {
  static std::mutex generating;
  const std::lock_guard lock(generating);
  return make_mlp(at::kFloat, kWidth);
}

/// The parameters after training in one process on the CPU, with the batches of `ranks` ranks.
inline at::Tensor train_alone(Algorithm algorithm, int ranks, int steps,
                              const std::function<void(torch::nn::Sequential&)>& before_step = {}) {
  torch::nn::Sequential model = make_model();
  const auto optimizer = make_optimizer(algorithm, model->parameters());
  for (int step = 0; step < steps; ++step) {
    optimizer->zero_grad();
    loss_of(model, batch_rows(step, 0, kRows * ranks, kWidth, at::kFloat)).backward();
    if (before_step) before_step(model);
    optimizer->step();
  }
  return flat(*model);
}

/// A model on the rank's device, and its optimizer.
struct CudaTraining {
  CudaTraining(CudaRank& rank, Algorithm algorithm, DistributedOptimizer::Options options)
      : model(make_model()) {
    model->to(rank.device());
    wrapped = make_optimizer(algorithm, model->parameters());
    optimizer = std::make_unique<DistributedOptimizer>(*wrapped, *model, std::move(options));
  }
  void compute_gradients(const CudaRank& rank, int step) {
    optimizer->zero_grad();
    loss_of(model, rows_of(rank, step)).backward();
  }
  void step(const CudaRank& rank, int number) {
    compute_gradients(rank, number);
    optimizer->step();
  }

  torch::nn::Sequential model;
  std::unique_ptr<torch::optim::Optimizer> wrapped;
  std::unique_ptr<DistributedOptimizer> optimizer;
};

inline void expect_close(CudaTraining& training, const at::Tensor& expected,
                         double tolerance = 1e-5) {
  EXPECT_LT(largest_difference(flat(*training.model).cpu(), expected), tolerance);
}

/// Values for tests that run in every shard mode.
inline auto every_mode() {
  return testing::Values(Shard::None, Shard::Optimizer, Shard::Gradients, Shard::Full);
}
inline std::string name_of_mode(const testing::TestParamInfo<Shard>& tried) {
  return std::string(name_of(tried.param));
}

}  // namespace kolo::test
