#include "kolo/torch/grad_scaler.hpp"

#include <algorithm>
#include <cmath>

#include <ATen/ops/mul.h>
#include <ATen/ops/scalar_tensor.h>

#include "kolo/error.hpp"
#include "train/optimizer/training_engine.hpp"

namespace kolo {
namespace {

using Found = train::GlobalGradients::Found;

void require(bool holds, const std::string& what) {
  if (!holds) throw InvalidArgument("GradScaler: " + what);
}

void check(const GradScalerOptions& options) {
  const auto got = [](const char* name, const auto value) {
    return std::string(name) + " is " + std::to_string(value) + ", it must be ";
  };
  require(std::isnormal(static_cast<float>(options.init_scale)) && options.init_scale > 0.0,
          got("the scale", options.init_scale) + "positive and finite in float32");
  require(options.growth_factor > 1.0 && std::isfinite(options.growth_factor),
          got("growth_factor", options.growth_factor) + "more than 1 and finite");
  require(options.backoff_factor > 0.0 && options.backoff_factor < 1.0,
          got("backoff_factor", options.backoff_factor) + "between 0 and 1");
  require(options.growth_interval > 0,
          got("growth_interval", options.growth_interval) + "1 or more");
}

}  // namespace

GradScaler::GradScaler(const Options& options)
    : options_(options), scale_(static_cast<float>(options.init_scale)) {
  check(options_);
}

at::Tensor GradScaler::scale(const at::Tensor& loss) {
  if (!options_.enabled) return loss;
  has_scaled_ = true;
  if (!loss.defined()) return loss;
  // As a float32 tensor, the scale promotes 16-bit scalars to float32; a number would not.
  return at::mul(loss,
                 at::scalar_tensor(scale_, loss.options().dtype(at::kFloat).requires_grad(false)));
}

void GradScaler::unscale_(DistributedOptimizer& optimizer) {
  if (!options_.enabled) return optimizer.engine_->make_gradients_ready();
  require_scaled("unscale_()");
  if (const Progress* progress = progress_of(optimizer)) {
    require(!progress->overflow,
            "unscale_() after step(). Call it before step(), or update() first.");
    require(false, "unscale_() a second time since update(). Call it once for each optimizer.");
  }
  optimizer.engine_->unscale(scale_);
  progress_.push_back({&optimizer});
}

bool GradScaler::step(DistributedOptimizer& optimizer) {
  if (!options_.enabled) {
    optimizer.step();
    return true;
  }
  require_scaled("step()");
  if (progress_of(optimizer) == nullptr) unscale_(optimizer);
  Progress& progress = *progress_of(optimizer);
  require(!progress.overflow, "step() a second time since update(). Call update() first.");
  const Found found = optimizer.engine_->found_in_gradients();
  require(found != Found::NoGradients,
          "step(): no rank has a gradient. Call it after backward() of the scaled loss.");
  if (found == Found::Finite) {
    optimizer.step();
  } else {
    optimizer.engine_->skip_step();
  }
  progress.overflow = found == Found::Overflow;
  return !*progress.overflow;
}

void GradScaler::update(std::optional<double> new_scale) {
  if (!options_.enabled) return;
  require_scaled("update()");
  const float before = scale_;
  if (new_scale) {
    State changed = state();
    changed.scale = *new_scale;
    set_state(changed);
  } else {
    bool any = false;
    bool overflow = false;
    for (const Progress& progress : progress_) {
      // Unknown for an optimizer that was unscaled but not stepped through this scaler.
      const Found found = progress.overflow ? (*progress.overflow ? Found::Overflow : Found::Finite)
                                            : progress.optimizer->engine_->found_in_gradients();
      any = any || found != Found::NoGradients;
      overflow = overflow || found == Found::Overflow;
    }
    require(any,
            "update(): no gradients were checked since the last one. Call step() first, or pass a "
            "new scale.");
    adjust_scale(overflow);
  }
  for (const Progress& progress : progress_) {
    progress.optimizer->engine_->rescale(static_cast<double>(scale_) / before);
  }
  progress_.clear();
}

/// Like torch, computes in float32, but keeps 1 / scale finite.
void GradScaler::adjust_scale(bool overflow) {
  growth_tracker_ = overflow ? 0 : growth_tracker_ + 1;
  const bool grows = growth_tracker_ >= options_.growth_interval;
  if (grows) growth_tracker_ = 0;
  if (!overflow && !grows) return;
  const double factor = overflow ? options_.backoff_factor : options_.growth_factor;
  const auto scale = static_cast<float>(scale_ * factor);
  if (std::isnormal(scale)) scale_ = scale;
}

GradScaler::State GradScaler::state() const {
  return {scale_, options_.growth_factor, options_.backoff_factor, options_.growth_interval,
          growth_tracker_};
}

void GradScaler::set_state(const State& state) {
  const Options options{state.scale, state.growth_factor, state.backoff_factor,
                        state.growth_interval, options_.enabled};
  check(options);
  require(state.growth_tracker >= 0,
          "growth_tracker is " + std::to_string(state.growth_tracker) + ", it must be 0 or more");
  options_ = options;
  scale_ = static_cast<float>(state.scale);
  growth_tracker_ = state.growth_tracker;
}

GradScaler::Progress* GradScaler::progress_of(const DistributedOptimizer& optimizer) {
  const auto found = std::find_if(progress_.begin(), progress_.end(), [&](const Progress& each) {
    return each.optimizer == &optimizer;
  });
  return found == progress_.end() ? nullptr : &*found;
}

void GradScaler::require_scaled(const std::string& what) const {
  require(has_scaled_, what + " before any scale(). Call backward() on what scale(loss) returns.");
}

}  // namespace kolo
