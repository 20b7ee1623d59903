#include "torch/accelerator/training_progress.hpp"

#include <iostream>

namespace kolo::tensors {

void TrainingProgress::begin(std::int64_t steps, std::size_t samples_per_step) {
  bar_.emplace(std::cout, /*on_terminal=*/true, static_cast<int>(steps),
               static_cast<double>(samples_per_step), "samples");
  steps_ = 0;
  begun_ = Clock::now();
}

void TrainingProgress::end_step(const at::Tensor& loss) {
  if (!bar_) return;
  ++steps_;
  const double seconds = std::chrono::duration<double>(Clock::now() - begun_).count();
  // Reading the loss waits for the GPU, so only an update of the bar reads it.
  if (loss.defined() && bar_->is_due(steps_, seconds)) {
    bar_->update(steps_, loss.item<double>(), seconds);
  }
}

}  // namespace kolo::tensors
