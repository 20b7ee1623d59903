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
namespace kolo::tensors {
class RateSource;
}

#pragma GCC visibility push(default)
namespace kolo {

/// How an Accelerator changes learning rates: once after every step of the optimizer, never for a
/// step that was skipped. What it converts from can be given in its place:
///
///   accelerator.prepare(*model, adamw, data, {.batch_size = 64},
///                       [](std::int64_t step) { return std::min(1.0, (step + 1) / 100.0); });
///
///   torch::optim::StepLR step_lr(adamw, /*step_size=*/1000, /*gamma=*/0.5);
///   accelerator.prepare(*model, adamw, data, {.batch_size = 64}, step_lr);
///
/// Its state is part of Accelerator::save_state. LibTorch's schedulers show nothing of theirs, so
/// load_state calls the step() of a new one as often as it was called before, and then sets the
/// learning rates that the checkpoint has.
class Schedule {
 public:
  /// Learning rates stay as they are.
  Schedule();
  /// @param factor of step k, from 0: the learning rate of each group in that step is the one that
  ///   it had in prepare() times factor(k). Called again after a restart, so it must depend on k
  ///   alone. As LambdaLR of PyTorch
  explicit Schedule(std::function<double(std::int64_t step)> factor);
  template <class Factor>
    requires std::is_invocable_r_v<double, Factor, std::int64_t>
  Schedule(Factor factor)  // NOLINT(google-explicit-constructor): as the others
      : Schedule(std::function<double(std::int64_t)>(std::move(factor))) {}
  /// @param scheduler of the optimizer that is prepared; must outlive the Accelerator. A class of
  ///   the program's own must depend on calls of step() and on learning rates alone
  Schedule(torch::optim::LRScheduler& scheduler);  // NOLINT(google-explicit-constructor)
  /// @param scheduler the same; Accelerator::step_schedule gives it its metric
  Schedule(torch::optim::ReduceLROnPlateauScheduler& scheduler);  // NOLINT(google-explicit-*)

  /// For the Accelerator.
  const std::shared_ptr<tensors::RateSource>& source() const { return source_; }

 private:
  std::shared_ptr<tensors::RateSource> source_;
};

}  // namespace kolo
#pragma GCC visibility pop
