#pragma once

#include <cstdint>
#include <string>

#include "train/gradients/gradient_reducers.hpp"
#include "train/gradients/training_context.hpp"

namespace kolo::train {

/// The problem with these options; empty if there is none.
std::string problem_with_local_sgd(const DistributedOptimizerOptions& options);

/// Local SGD, see DistributedOptimizerOptions::local_sgd: decides which steps ranks take alone, and
/// averages parameters after some of them.
class LocalSgdSchedule {
 public:
  /// The arguments outlive this.
  LocalSgdSchedule(TrainingContext& context, const GradientReducers& reducers);

  /// Whether ranks step alone now.
  bool is_on() const { return is_on_; }
  /// A step has ended; after an overflow, without an update. Returns whether to average
  /// parameters now.
  bool end_step();
  /// Continues the schedule after a checkpoint with this many steps was loaded.
  void resume(std::int64_t steps);
  /// Averages parameters. Collective and blocking.
  void average();

 private:
  void follow_schedule();

  TrainingContext& context_;
  const GradientReducers& reducers_;
  const LocalSgd schedule_;
  std::int64_t steps_ = 0;  // ended
  bool is_on_ = false;
};

}  // namespace kolo::train
