#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kolo/distributed_optimizer.hpp"

namespace kolo {

/// The same on all ranks.
struct GradScalerOptions {
  double init_scale = 65536.0;
  double growth_factor = 2.0;           ///< more than 1
  double backoff_factor = 0.5;          ///< between 0 and 1
  std::int64_t growth_interval = 2000;  ///< steps in a row without an overflow after which it grows
  bool enabled = true;                  ///< otherwise step() steps, and nothing else does anything
};

/// Trains with 16-bit floats whose range is small: multiplies the loss by a scale, so that small
/// gradients are not lost on their way, and takes the scale away before the step. After
/// torch.amp.GradScaler, for any sharding:
///
///   scaler.scale(loss).backward();
///   scaler.unscale_(optimizer);       // only where gradients are looked at, or clipped
///   optimizer.clip_grad_norm_(1.0);
///   scaler.step(optimizer);
///   scaler.update();
///
/// A gradient that is infinite or no number on any rank makes all ranks skip the step together.
/// Ranks tell each other in one small reduction a step, which is that of the norm where
/// clip_grad_norm_ is called after unscale_.
///
/// One scaler may serve several optimizers, each with its own unscale_() and step(), and one
/// update() at the end. Use it on every rank alike. Errors are InvalidArgument for calls that torch
/// rejects too, MismatchError on all ranks where their scales differ, and those of the reductions.
/// Not thread-safe.
class GradScaler {
 public:
  using Options = GradScalerOptions;

  /// What a checkpoint holds to go on with. `scale` and `growth_tracker`, the steps in a row
  /// without an overflow so far, change from step to step.
  struct State {
    double scale;
    double growth_factor;
    double backoff_factor;
    std::int64_t growth_interval;
    std::int64_t growth_tracker;
    bool operator==(const State&) const = default;
  };

  /// Throws InvalidArgument for options out of range.
  explicit GradScaler(const Options& options = {});

  /// Returns the loss, or any output, times the scale: of its shape and type, but float32 for a
  /// 16-bit scalar, which could not hold it.
  at::Tensor scale(const at::Tensor& loss);

  /// Waits until the optimizer's gradients are reduced, and divides them by the scale. At most once
  /// an optimizer between two calls of update(), before its step(). Throws InvalidArgument, on all
  /// ranks, where parameters are float16: train those in float32, under Autocast. Gradients of
  /// float32, float64 and bfloat16 are taken.
  void unscale_(DistributedOptimizer& optimizer);

  /// Steps the optimizer, after unscale_() if that has not been called, and returns true; or where
  /// gradients overflowed on any rank, leaves the parameters, the wrapped optimizer and its state
  /// as they are, and returns false. The same on all ranks. Once an optimizer between two calls of
  /// update(); closures are not possible. Throws InvalidArgument, on all ranks, where no rank has
  /// any gradient.
  bool step(DistributedOptimizer& optimizer);

  /// After the steps of all optimizers: the scale becomes smaller where any of their gradients
  /// overflowed, and larger after growth_interval calls in a row without; or it becomes
  /// `new_scale`, which must be positive and finite. A scale that float32 cannot hold is not taken.
  /// Throws InvalidArgument where nothing was unscaled and there is no `new_scale`.
  void update(std::optional<double> new_scale = {});

  /// 1 where it is not enabled.
  double get_scale() const { return options_.enabled ? scale_ : 1.0; }
  bool is_enabled() const { return options_.enabled; }

  /// Set between steps, on all ranks. Throws InvalidArgument for values out of range.
  State state() const;
  void set_state(const State& state);

 private:
  /// What has happened to an optimizer since update().
  struct Progress {
    DistributedOptimizer* optimizer;
    std::optional<bool> overflow{};  // known since its step()
  };
  Progress* progress_of(const DistributedOptimizer& optimizer);
  void require_scaled(const std::string& what) const;
  void follow(bool overflow);

  Options options_;
  float scale_;
  std::int64_t growth_tracker_ = 0;
  bool has_scaled_ = false;
  std::vector<Progress> progress_;  // of those that were unscaled
};

}  // namespace kolo
