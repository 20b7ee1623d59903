#pragma once

#include <string>

#include "torch/optimizer/parameter_batches.hpp"
#include "torch/optimizer/training_context.hpp"

namespace kolo::tensors {

/// Detects uses of an optimizer that would silently train wrongly. All throw InvalidArgument.
class UsageGuards {
 public:
  UsageGuards(const TrainingContext& context, const ParameterBatches& batches)
      : context_(context), batches_(batches) {}

  /// Throws if the optimizer is sharded, for which `what` is not possible.
  void require_unsharded(const std::string& what) const;
  /// Throws once state is sharded, since `what` writes or reads whole state.
  void require_whole_state(const std::string& what) const;
  /// Throws if the program has moved parameters, has written to those that ranks share, or has
  /// stepped the wrapped optimizer of a sharded one.
  void require_untouched() const;

  /// Gradients are discarded, and parameter `changed` (empty: none) has changed since they arrived.
  /// Throws the second time without a step between: the wrapped optimizer has been stepped instead.
  /// Once a program may have its reasons, as one that clamps the weights of a GAN.
  void discard_after_change(const std::string& changed);
  void step() { discards_after_change_ = 0; }

 private:
  const TrainingContext& context_;
  const ParameterBatches& batches_;
  int discards_after_change_ = 0;  // since the last step
};

}  // namespace kolo::tensors
