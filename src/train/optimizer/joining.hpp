#pragma once

#include <optional>
#include <utility>

#include "train/optimizer/gradient_reducers.hpp"
#include "train/optimizer/rank_comparison.hpp"
#include "train/optimizer/training_context.hpp"
#include "train/wrapped/options.hpp"

namespace kolo::train {

/// Announces the commands of active ranks to joined ranks, whose shards a sharded optimizer needs.
class JoinCommands {
 public:
  explicit JoinCommands(TrainingContext& context) : context_(context) {}

  /// Called by active ranks; collective if any rank has joined, otherwise does nothing. Throws
  /// MismatchError if active ranks announce different commands.
  void announce(const StepCommand& command);
  /// Called by joined ranks: returns what the active ranks announce; nothing if all have joined.
  /// Collective.
  std::optional<StepCommand> receive();
  /// The last rank that has announced anything since the last call, if any has.
  std::optional<int> take_last_active() { return std::exchange(last_active_, std::nullopt); }

 private:
  nlohmann::json allgather(const nlohmann::json& own);

  TrainingContext& context_;
  std::optional<int> last_active_;
};

/// After a join, if ranks took different numbers of steps: copies the parameters, optimizer state
/// and options of a rank that took the most to all. Rebuilds `reducers` if ranks have laid out
/// buckets differently. Before, compares the last step of those that took the most. Collective.
void align_ranks(TrainingContext& context, GradientReducers& reducers, OptionSync& option_sync,
                 const RankComparison& comparison);

}  // namespace kolo::train
