#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kolo/agreement.hpp"
#include "kolo/torch/distributed_optimizer.hpp"
#include "train/gradients/gradient_reducers.hpp"
#include "train/gradients/training_context.hpp"
#include "train/wrapped/options.hpp"

namespace kolo::train {

/// How a step ended whose gradients are reduced.
enum class StepEnd : std::uint8_t {
  Open,  ///< not yet: step() has failed, or was not called
  Step,
  Skipped,  ///< without an update, by a GradScaler
  Dropped,
};

/// Compares between ranks what all must do alike: the options that the last step applied, the
/// members of parameter groups, how the last step ended, and the calls that changed its gradients
/// or the state.
///
/// Each rank sends a digest with the flags of the next reduction, whose sums show whether two ranks
/// differ: one step late, but without an operation of its own. Only then are the facts gathered,
/// for the text of the error. A set of one rank compares nothing.
class RankComparison {
 public:
  /// The arguments outlive this.
  RankComparison(TrainingContext& context, const GradientReducers& reducers,
                 const OptionSync& option_sync)
      : context_(context), reducers_(reducers), option_sync_(option_sync) {
    restart();
  }

  /// A step whose gradients are reduced has ended on this rank, or begins to with StepEnd::Open.
  void note(StepEnd end);
  /// In the step that has begun, a call with these arguments has changed the reduced gradients.
  void note_call(const std::string& call, const std::vector<double>& arguments = {});
  /// In the step that has begun, the program has dropped the gradients of these parameters.
  void note_dropped(const std::vector<std::string>& parameters);
  /// The program has reset the state of this parameter, in this step or before the next.
  void note_reset(const std::string& parameter);
  /// step() has thrown on this rank: the reason, for error texts.
  void note_failure(std::string reason) { failure_ = std::move(reason); }
  /// Forgets the last step, on all ranks alike.
  void restart();

  /// After a reduction: throws MismatchError on all ranks if two differ, and forgets the last step.
  /// Collective only then.
  void require_alike();
  /// Compares the last step now. Collective. Joined ranks, and those that do not `count`, are left
  /// out.
  void compare_last(bool counts = true) const;
  /// Also compares what the next step would apply.
  void compare_last_and_next() const;
  /// Warns if ranks have begun different numbers of batches, as their calls of zero_grad() show:
  /// where some skip batches, steps combine gradients of different ones. Collective.
  void warn_of_skipped_batches(std::uint64_t zero_grads) const;

 private:
  std::vector<NamedValue> last_facts() const;
  std::vector<NamedValue> facts_now() const;
  void compare(const std::vector<NamedValue>& facts) const;

  TrainingContext& context_;
  const GradientReducers& reducers_;
  const OptionSync& option_sync_;
  StepEnd end_ = StepEnd::Open;
  std::string changes_;                // of gradients in this step, and of state before it
  std::string resets_;                 // of state since it began
  std::string failure_;                // why step() has thrown; not compared
  std::vector<NamedValue> of_groups_;  // when the last step ended
  std::uint64_t digest_of_groups_ = 0;
  std::pair<std::uint64_t, std::int64_t> known_{};  // what of_groups_ depends on
};

}  // namespace kolo::train
