#pragma once

#include <cstdint>
#include <string>

#include "torch/optimizer/parameter_batches.hpp"
#include "torch/optimizer/training_context.hpp"

namespace kolo::tensors {

/// What is wrong with these options; empty if nothing is.
std::string problem_with_local_steps(const DistributedOptimizerOptions& options);

/// Local SGD, see DistributedOptimizerOptions::local_sgd: decides which steps ranks take alone, and
/// averages parameters after some of them.
class LocalSteps {
 public:
  /// What these refer to outlives this.
  LocalSteps(TrainingContext& context, const ParameterBatches& batches);

  /// Whether ranks step alone now.
  bool is_on() const { return is_on_; }
  /// A step has ended, with an update or, after an overflow, without. Returns whether parameters
  /// are to be averaged now.
  bool end_step();
  /// After a checkpoint of that many steps was loaded.
  void resume(std::int64_t steps);
  /// Collective and blocking, under names of their own.
  void average();

 private:
  void follow_schedule();

  TrainingContext& context_;
  const ParameterBatches& batches_;
  const LocalSgd schedule_;
  std::int64_t steps_ = 0;  // ended
  bool is_on_ = false;
};

}  // namespace kolo::tensors
