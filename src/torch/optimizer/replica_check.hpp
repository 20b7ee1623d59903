#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "torch/optimizer/parameter_batches.hpp"
#include "torch/optimizer/training_context.hpp"

namespace kolo::tensors {

/// Compares the parameters of all ranks by digests, see DistributedOptimizer::check_replicas().
/// Joined ranks contribute zeros to its reductions, which mean that they have no digests.
class ReplicaCheck {
 public:
  /// The arguments outlive this.
  ReplicaCheck(const TrainingContext& context, const ParameterBatches& batches)
      : context_(context), batches_(batches) {}

  /// All ranks have ended a step. If a check is due, throws the error of check(). With
  /// `can_differ`, parameters differ intentionally, and a check that is due waits for a later step.
  void end_step(bool can_differ);
  /// Throws MismatchError on all ranks if parameters differ. Collective and blocking.
  void check() const;
  /// Called on all ranks after a join, since some did not count the last steps.
  void restart() { steps_ = 0; }

 private:
  using Digests = std::vector<std::int64_t>;

  std::vector<Digests> allgather(const Digests& own, const std::string& what) const;
  [[noreturn]] void refuse(const std::vector<ReducedParameter>& parameters,
                           const Digests& digests) const;

  const TrainingContext& context_;
  const ParameterBatches& batches_;
  int steps_ = 0;  // since the last check
};

}  // namespace kolo::tensors
