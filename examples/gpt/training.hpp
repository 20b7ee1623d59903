#pragma once

#include <memory>
#include <string_view>

#include <torch/optim/optimizer.h>

#include "gpt/model.hpp"
#include "gpt/options.hpp"
#include "gpt/windows.hpp"
#include "kolo/process_set.hpp"

namespace gpt {

/// A new model, the same on every rank that was given the same seed.
Gpt make_model(const Options& options);

/// AdamW.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(Gpt& model, const Options& options);

/// This rank's share of the random batches of a text, the same in every run.
class Batches {
 public:
  Batches(const Options& options, std::string_view text);

  /// The next windows [options.batch, options.context + 1], int64.
  at::Tensor next();

 private:
  int rows_;
  std::size_t length_;
  std::string_view text_;
  WindowSampler sampler_;
};

/// Learns from `windows`, and returns their loss before it.
double train_step(Gpt& model, torch::optim::Optimizer& optimizer, const at::Tensor& windows);

struct TrainingResult {
  double initial_loss = 0;  ///< of the first step
  double final_loss = 0;    ///< mean of the last steps
  double seconds = 0;
  double step_ms_median = 0;
  double bytes_sent_per_step = 0;  ///< by this rank; median, so without what the first step settles
  kolo::ProcessSet::Metrics metrics;  ///< of this rank since Kolo started
};

/// Runs all steps, and shows progress on rank 0. Losses are means over all ranks. Collective.
TrainingResult train(Gpt& model, torch::optim::Optimizer& optimizer, const Options& options,
                     std::string_view text);

}  // namespace gpt
