#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "gpt/model.hpp"
#include "gpt/options.hpp"
#include "gpt/windows.hpp"
#include "kolo/process_set.hpp"
#include "kolo/torch/distributed_optimizer.hpp"

namespace gpt {

/// A new model, the same on every rank that was given the same seed.
Gpt make_model(const Options& options);

/// AdamW, also with state of 8 bits; or Muon for the matrices of blocks, with AdamW's rate.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(Gpt& model, const Options& options);

/// This rank's share of the random batches of a text, the same in every run.
class Batches {
 public:
  Batches(const Options& options, std::string_view text);

  /// The next windows [options.batch, options.context + 1], int64.
  at::Tensor next();
  /// Skips the next `steps` batches.
  void skip(int steps);

 private:
  int rows_;
  std::size_t length_;
  std::string_view text_;
  WindowSampler sampler_;
};

/// Computes the gradients of the loss of `windows`, and returns it.
double compute_gradients(Gpt& model, torch::optim::Optimizer& optimizer, const at::Tensor& windows);
/// Trains on `windows`, and returns their loss before the update.
double train_step(Gpt& model, torch::optim::Optimizer& optimizer, const at::Tensor& windows);

struct TrainingResult {
  std::vector<double> losses;  ///< of each step
  double final_loss = 0;       ///< mean of the last steps
  double seconds = 0;
  double step_ms_median = 0;
  double bytes_sent_per_step = 0;     ///< by this rank; median, to exclude the first step
  kolo::ProcessSet::Metrics metrics;  ///< of this rank since Kolo started
};

/// Runs all steps from `first_step` on, saves checkpoints, and shows progress on rank 0. Losses are
/// means over all ranks. Collective.
TrainingResult train(Gpt& model, kolo::DistributedOptimizer& optimizer, const Options& options,
                     std::string_view text, int first_step);

}  // namespace gpt
