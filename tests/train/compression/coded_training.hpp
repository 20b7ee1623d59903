#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "runtime/runtimes.hpp"
#include "support/codecs.hpp"
#include "train/checkpoint/checkpoint_image.hpp"
#include "train/prefix_sets.hpp"
#include "train/sharding.hpp"
#include "train/small_training.hpp"

/// Shared code of the tests of codecs in training.
namespace kolo::test::compression_test {

/// Whether a codec encodes anything that this rank sends.
inline bool is_coded(ShardScope scope = ShardScope::World) {
  const Runtime& runtime = Runtime::current();
  return scope == ShardScope::World ? runtime.size() > 1 : runtime.cross_size() > 1;
}

using Shapes = std::vector<std::vector<std::int64_t>>;

/// Parameters that start at zero, trained with learning rate 1. Losses are linear in them, so
/// gradients are known, and the sums of all ranks' gradients must arrive.
class LinearTraining {
 public:
  static Shapes shapes() { return {{40003}, {37, 11}, {1}, {300}}; }

  explicit LinearTraining(DistributedOptimizer::Options options, const Shapes& sizes = shapes(),
                          ProcessSet& set = Runtime::current().world())
      : set_(set), op_(options.op) {
    if (options.bucket_bytes == 0) options.bucket_bytes = 64 << 10;
    options.process_set = &set;
    DistributedOptimizer::NamedParameters names;
    for (const auto& shape : sizes) {
      const auto type = names.size() == 1 ? torch::kFloat64 : torch::kFloat32;
      names.emplace_back("p" + std::to_string(names.size()),
                         torch::zeros(shape, torch::dtype(type).requires_grad(true)));
      parameters_.push_back(names.back().second);
      given_.push_back(torch::zeros(shape, torch::kFloat64));
    }
    names.emplace_back("late", late_);
    inner_ = std::make_unique<torch::optim::SGD>(parameters_, 1.0);
    optimizer_ = std::make_unique<DistributedOptimizer>(*inner_, names, options);
  }

  DistributedOptimizer& optimizer() { return *optimizer_; }
  const Parameters& parameters() const { return parameters_; }

  static at::Tensor gradient(const at::Tensor& like, int rank, int step, std::size_t index) {
    return (torch::arange(like.numel(), torch::kFloat64) * (0.37 * (rank + 2)) + step +
            0.5 * static_cast<double>(index))
        .sin()
        .view(like.sizes());
  }
  /// A loss whose gradients are this rank's gradients of the step, times `factor`.
  at::Tensor loss(int step, double factor = 1.0) {
    at::Tensor loss = torch::zeros({}, torch::kFloat64);
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const at::Tensor own = gradient(parameters_[i], set_.rank(), step, i) * factor;
      loss = loss + (parameters_[i] * own.to(parameters_[i].dtype())).sum();
    }
    return loss;
  }
  void backward(int step, double factor = 1.0) { loss(step, factor).backward(); }
  /// Records the gradients of a step as given: by all ranks, or by one (`count_of`).
  void count(int step) {
    for (int rank = 0; rank < set_.size(); ++rank) count_of(step, rank);
  }
  void count_of(int step, int rank) { add_gradients(given_, step, rank); }
  static void add_gradients(std::vector<at::Tensor>& given, int step, int rank) {
    for (std::size_t i = 0; i < given.size(); ++i) given[i] += gradient(given[i], rank, step, i);
  }
  void run(int begin, int end) {
    for (int step = begin; step < end; ++step) {
      optimizer_->zero_grad();
      backward(step);
      optimizer_->step();
      count(step);
    }
  }
  /// The same with backward(loss_sum, count), which gives equal results for ReduceOp::Sum.
  void run_counted(int begin, int end) {
    constexpr std::int64_t kCount = 64;
    const double ranks = op_ == ReduceOp::Average ? 1.0 : set_.size();
    for (int step = begin; step < end; ++step) {
      optimizer_->zero_grad();
      optimizer_->backward(loss(step, static_cast<double>(kCount) * ranks), kCount);
      optimizer_->step();
      count(step);
    }
  }
  /// Steps without a gradient, in which residuals are applied.
  void run_idle(int steps) {
    for (int step = 0; step < steps; ++step) {
      optimizer_->zero_grad();
      backward(0, 0.0);
      optimizer_->step();
    }
  }
  void add_late_parameter() {
    inner_->add_param_group(torch::optim::OptimizerParamGroup({late_}));
    parameters_.push_back(late_);
    given_.push_back(torch::zeros(late_.sizes(), torch::kFloat64));
  }

  /// The sum over ranks of the residuals of each parameter, read from a checkpoint. The set must be
  /// the world.
  std::vector<at::Tensor> residual_sums(const std::filesystem::path& folder) {
    optimizer_->save(folder);
    const CheckpointImage image = read_image(folder);
    std::vector<at::Tensor> residual_sums;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const bool is_late = parameters_[i].is_same(late_);
      const std::string end = "." + (is_late ? "late" : "p" + std::to_string(i));
      residual_sums.push_back(torch::zeros(parameters_[i].sizes(), torch::kFloat64));
      for (const auto& [key, tensor] : image.tensors) {
        if (!key.starts_with("residual.") || !key.ends_with(end)) continue;
        const at::Tensor values = torch::empty(parameters_[i].sizes());
        std::memcpy(values.data_ptr(), tensor.bytes.data(), tensor.bytes.size());
        residual_sums.back() += values;
      }
    }
    return residual_sums;
  }
  static double largest(const std::vector<at::Tensor>& tensors) {
    double largest = 0;
    for (const at::Tensor& each : tensors) {
      largest = std::max(largest, each.abs().max().item<double>());
    }
    return largest;
  }

  /// Expects that every gradient has been applied or is in `residual_sums`, which hold gradients
  /// multiplied by `scale`.
  void expect_balance(const std::vector<at::Tensor>& residual_sums, const std::string& what,
                      double scale = 1.0) {
    const double ranks = op_ == ReduceOp::Average ? set_.size() : 1;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const at::Tensor applied = parameters_[i].detach().to(torch::kFloat64) * -ranks;
      EXPECT_LT(largest_difference(applied + residual_sums[i] / scale, given_[i]),
                2e-4 * Runtime::current().size())
          << what << ", parameter " << i;
    }
  }
  /// Expects that all given gradients have been applied, in averages over `ranks`.
  void expect_applied(const std::vector<at::Tensor>& given, double ranks, const std::string& what) {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const at::Tensor applied = parameters_[i].detach().to(torch::kFloat64) * -ranks;
      EXPECT_LT(largest_difference(applied, given[i]), 2e-4 * Runtime::current().size())
          << what << ", parameter " << i;
    }
  }
  std::vector<at::Tensor> given() const {
    std::vector<at::Tensor> copies;
    for (const at::Tensor& each : given_) copies.push_back(each.clone());
    return copies;
  }
  void set_given(std::vector<at::Tensor> given) { given_ = std::move(given); }

 private:
  ProcessSet& set_;
  ReduceOp op_;
  Parameters parameters_;
  at::Tensor late_ = torch::zeros({513}, torch::requires_grad());
  std::vector<at::Tensor> given_;
  std::unique_ptr<Optimizer> inner_;
  std::unique_ptr<DistributedOptimizer> optimizer_;
};

/// The loss of a small model after 150 steps of descent.
inline double trained_loss(DistributedOptimizer::Options options) {
  constexpr std::int64_t kWidth = 9;
  constexpr std::int64_t kRows = 8;
  const Runtime& runtime = Runtime::current();
  torch::nn::Sequential model = make_mlp(torch::kFloat32, kWidth, 2);
  torch::optim::SGD inner(model->parameters(), 0.05);
  DistributedOptimizer optimizer(inner, *model, std::move(options));
  const auto loss_of_step = [&](int step) {
    const at::Tensor rows =
        batch_rows(step % 5, kRows * runtime.rank(), kRows, kWidth, torch::kFloat32);
    return loss_of(model, rows);
  };
  for (int step = 0; step < 150; ++step) {
    optimizer.zero_grad();
    loss_of_step(step).backward();
    optimizer.step();
  }
  double loss = 0;
  for (int step = 0; step < 5; ++step)
    loss += allreduce(loss_of_step(step).detach()).item<double>();
  return loss / 5;
}

class CompressionTest : public TrainingTest, public testing::WithParamInterface<Shard> {
 protected:
  static DistributedOptimizer::Options summed(const Compression& compression) {
    return {.op = ReduceOp::Sum, .compression = compression, .shard = GetParam()};
  }

  CommonFolder folder_;
  PrefixSets sets_{runtime_};
};

}  // namespace kolo::test::compression_test
