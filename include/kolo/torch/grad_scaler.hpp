#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kolo/torch/distributed_optimizer.hpp"

#pragma GCC visibility push(default)
namespace kolo {

/// Options of a GradScaler; the same on all ranks.
struct GradScalerOptions {
  double init_scale = 65536.0;          ///< positive and finite in float32
  double growth_factor = 2.0;           ///< more than 1
  double backoff_factor = 0.5;          ///< between 0 and 1
  std::int64_t growth_interval = 2000;  ///< steps without overflow before the scale grows
  bool enabled = true;                  ///< false: only step() has an effect
};

/// Scales the loss so that small gradients survive in 16-bit floats, and unscales gradients before
/// the step. Semantics of torch.amp.GradScaler, in any shard mode:
///
///   scaler.scale(loss).backward();
///   scaler.unscale_(optimizer);       // only to read or clip gradients
///   optimizer.clip_grad_norm_(1.0);
///   scaler.step(optimizer);
///   scaler.update();
///
/// If a gradient is infinite or NaN on any rank, all ranks skip the step. Where gradients are
/// sharded, they agree on this in one small reduction per step, which is that of the norm if
/// clip_grad_norm_() follows unscale_(). With Shard::None each rank sees it in the reduced
/// gradients, which are the same on all.
///
/// One scaler may serve several optimizers, each with its own unscale_() and step(), and one
/// update() at the end. All ranks must use it alike. In addition to the errors below, it throws
/// InvalidArgument for calls that torch rejects too, MismatchError on all ranks if their scales
/// differ, and the errors of reductions. With Shard::None, the next reduction throws that
/// MismatchError, and one if ranks differ in whether they stepped, skipped or dropped the step: as
/// when only one of them has changed its reduced gradients. Not thread-safe.
class GradScaler {
 public:
  using Options = GradScalerOptions;

  /// What a checkpoint saves. Only `scale` and `growth_tracker`, the number of consecutive steps
  /// without overflow so far, change from step to step.
  struct State {
    double scale;
    double growth_factor;
    double backoff_factor;
    std::int64_t growth_interval;
    std::int64_t growth_tracker;
    bool operator==(const State&) const = default;
  };

  /// @throws InvalidArgument for options out of range
  explicit GradScaler(const Options& options = {});

  /// Multiplies the loss, or any output, by the scale. An undefined tensor, as on a rank without
  /// samples, stays undefined.
  /// @return a tensor of the same shape and dtype, but float32 for a 16-bit scalar, whose range is
  ///   too small for the result
  at::Tensor scale(const at::Tensor& loss);

  /// Blocks until the optimizer's gradients are reduced, and, if enabled, divides them by the
  /// scale. At most once for each optimizer between two calls of update(), before its step().
  /// @throws InvalidArgument on all ranks if parameters are float16: keep them in float32 and run
  ///   the model under Autocast
  void unscale_(DistributedOptimizer& optimizer);

  /// Calls unscale_() unless the program has, then steps the optimizer; or, if gradients overflowed
  /// on any rank, leaves parameters and optimizer state as they are. Once for each optimizer
  /// between two calls of update(). Takes no closure.
  /// @return whether it stepped; the same on all ranks
  /// @throws InvalidArgument on all ranks if no rank has a gradient
  bool step(DistributedOptimizer& optimizer);

  /// Adapts the scale after the steps of all optimizers: shrinks it if any gradients overflowed,
  /// and grows it after growth_interval consecutive calls without overflow. Keeps the scale if
  /// float32 cannot hold the new one. Passes the change to the optimizers that were unscaled since
  /// the last call, since their residuals have the scale of the gradients.
  /// @param new_scale the scale to use from now on instead; positive and finite in float32
  /// @throws InvalidArgument if nothing was unscaled and there is no `new_scale`
  void update(std::optional<double> new_scale = {});

  /// The scale; 1 if not enabled.
  double get_scale() const { return options_.enabled ? scale_ : 1.0; }
  bool is_enabled() const { return options_.enabled; }

  /// Saves and restores the scaler, between steps and on all ranks.
  /// @throws InvalidArgument for values out of range
  State state() const;
  void set_state(const State& state);

 private:
  /// An optimizer that was unscaled since the last update().
  struct Progress {
    DistributedOptimizer* optimizer;
    std::optional<bool> overflow{};  // known after its step()
  };
  Progress* progress_of(const DistributedOptimizer& optimizer);
  void require_scaled(const std::string& what) const;
  void adjust_scale(bool overflow);

  Options options_;
  float scale_;
  std::int64_t growth_tracker_ = 0;
  bool has_scaled_ = false;
  std::vector<Progress> progress_;
};

}  // namespace kolo
#pragma GCC visibility pop
