#pragma once

#include <string>

#include "train/gradients/gradient_reducers.hpp"
#include "train/gradients/training_context.hpp"

namespace kolo::train {

/// Detects uses of an optimizer that would silently train wrongly: they throw InvalidArgument.
class UsageGuards {
 public:
  UsageGuards(const TrainingContext& context, const GradientReducers& reducers)
      : context_(context), reducers_(reducers) {}

  /// Throws if the optimizer is sharded, so that `what` is impossible.
  void require_unsharded(const std::string& what,
                         const std::string& instead = "Use shard = none.") const;
  /// Throws once state is sharded, since `what` writes or reads whole state.
  void require_whole_state(const std::string& what) const;
  /// Throws if the program has moved parameters, has written to shared ones, or has stepped the
  /// wrapped optimizer of a sharded one.
  void require_untouched() const;

  /// Gradients are discarded, and parameter `changed` has changed since they arrived (empty: none).
  /// Throws the second time without a step in between: the program steps the wrapped optimizer
  /// instead. A single change may be intended, for instance clamping the weights of a GAN.
  void discard(const std::string& changed);
  void step() { discards_after_change_ = 0; }

 private:
  const TrainingContext& context_;
  const GradientReducers& reducers_;
  int discards_after_change_ = 0;  // since the last step
};

}  // namespace kolo::train
