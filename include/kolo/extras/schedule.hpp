#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

namespace torch::optim {
class LRScheduler;
class ReduceLROnPlateauScheduler;
}  // namespace torch::optim
namespace kolo::extras {
class RateSource;
}

#pragma GCC visibility push(default)
namespace kolo {

/// How an Accelerator changes learning rates: after every step of the optimizer that is not
/// skipped. Functions and schedulers convert to it:
///
///   accelerator.prepare(*model, adamw, data, {.batch_size = 64},
///                       [](std::int64_t step) { return std::min(1.0, (step + 1) / 100.0); });
///
///   torch::optim::StepLR step_lr(adamw, /*step_size=*/1000, /*gamma=*/0.5);
///   accelerator.prepare(*model, adamw, data, {.batch_size = 64}, step_lr);
///
/// Accelerator::save_state saves its state. LibTorch's schedulers do not expose theirs, so
/// load_state calls step() on a new scheduler as often as it was called before, and then sets the
/// learning rates of the checkpoint.
class Schedule {
 public:
  /// Learning rates stay as they are.
  Schedule();
  /// @param factor called with step k, from 0: in that step each group's learning rate is the one
  ///   it had in prepare() times factor(k). Called again after a restart, so it must depend only on
  ///   k. As PyTorch's LambdaLR
  explicit Schedule(std::function<double(std::int64_t step)> factor);
  template <class Factor>
    requires std::is_invocable_r_v<double, Factor, std::int64_t>
  Schedule(Factor factor)  // NOLINT(google-explicit-constructor): as the others
      : Schedule(std::function<double(std::int64_t)>(std::move(factor))) {}
  /// @param scheduler over the prepared optimizer; must outlive the Accelerator. A user-defined
  ///   class must depend only on calls of step() and on learning rates
  Schedule(torch::optim::LRScheduler& scheduler);  // NOLINT(google-explicit-constructor)
  /// @param scheduler the same; Accelerator::step_schedule passes its metric
  Schedule(torch::optim::ReduceLROnPlateauScheduler& scheduler);  // NOLINT(google-explicit-*)

  /// For the Accelerator.
  const std::shared_ptr<extras::RateSource>& source() const { return source_; }

 private:
  std::shared_ptr<extras::RateSource> source_;
};

}  // namespace kolo
#pragma GCC visibility pop
