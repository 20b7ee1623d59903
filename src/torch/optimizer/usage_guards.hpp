#pragma once

#include <string>

#include "torch/optimizer/parameter_batches.hpp"
#include "torch/optimizer/training_context.hpp"

namespace kolo::tensors {

/// Notices uses of an optimizer that would train wrongly without a word. All throw InvalidArgument.
class UsageGuards {
 public:
  UsageGuards(const TrainingContext& context, const ParameterBatches& batches)
      : context_(context), batches_(batches) {}

  /// `what` is not possible with a sharded optimizer.
  void require_unsharded(const std::string& what) const;
  /// `what` writes or reads whole state, of which each rank has shards only.
  void require_whole_state(const std::string& what) const;
  /// The program has neither moved parameters nor stepped the wrapped optimizer of a sharded one.
  void require_untouched() const;

  /// Gradients are discarded after parameter `changed` (empty: none) has changed since they arrived.
  /// The first time the program may have its reasons, as one that clamps the weights of a GAN. The
  /// second time without a step between, the wrapped optimizer has been stepped instead.
  void discard_after_change(const std::string& changed);
  void step() { discards_after_change_ = 0; }

 private:
  const TrainingContext& context_;
  const ParameterBatches& batches_;
  int discards_after_change_ = 0;  // since the last step
};

}  // namespace kolo::tensors
