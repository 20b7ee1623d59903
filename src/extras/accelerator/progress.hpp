#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

#include "kolo/extras/progress_bar.hpp"

namespace kolo::extras {

/// The progress bar of an Accelerator's epochs.
class TrainingProgress {
 public:
  /// Starts a progress bar of `steps` steps.
  void begin(std::int64_t steps, std::size_t samples_per_step);
  void end() { bar_.reset(); }
  void end_step(const at::Tensor& loss);
  void clear() {
    if (bar_) bar_->clear();
  }

 private:
  using Clock = std::chrono::steady_clock;

  std::optional<ProgressBar> bar_;  // none: nothing is shown
  int steps_ = 0;
  Clock::time_point begun_{};
};

/// While an instance lives, this process discards its standard output. Not thread-safe.
class QuietOutput {
 public:
  QuietOutput();
  ~QuietOutput();
  QuietOutput(const QuietOutput&) = delete;  // it counts once
  QuietOutput& operator=(const QuietOutput&) = delete;
};

}  // namespace kolo::extras
