#pragma once

#include <optional>

#include "torch/optimizer/parameter_batches.hpp"
#include "torch/optimizer/step_command.hpp"
#include "torch/optimizer/training_context.hpp"
#include "torch/wrapped/option_sync.hpp"

namespace kolo::tensors {

/// Tells the ranks that have joined what the active ones do, as long as a sharded optimizer needs
/// them for their shards.
class JoinCommands {
 public:
  explicit JoinCommands(const TrainingContext& context) : context_(context) {}

  /// On active ranks: tells the others, if any have joined. Collective then. Throws MismatchError
  /// where active ranks do different things.
  void announce(const StepCommand& command);
  /// On a rank that has joined: what the active ranks do. Collective.
  StepCommand receive();
  /// The last rank that has announced anything since this was asked; nothing where none has.
  std::optional<int> take_last_active() { return std::exchange(last_active_, std::nullopt); }

 private:
  nlohmann::json allgather(const nlohmann::json& own);

  const TrainingContext& context_;
  std::optional<int> last_active_;
};

/// After a join of ranks that took different numbers of steps: gives all ranks the parameters,
/// optimizer state and options of one that has taken the most. Rebuilds `batches` where ranks have
/// laid out buckets differently. Collective.
void align_ranks(TrainingContext& context, ParameterBatches& batches, OptionSync& option_sync);

}  // namespace kolo::tensors
