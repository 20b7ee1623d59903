#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "kolo/error.hpp"
#include "train/optimizer/gradient_reducers.hpp"
#include "train/optimizer/rank_comparison.hpp"
#include "train/optimizer/training_context.hpp"
#include "train/wrapped/options.hpp"

namespace kolo::train {

/// Which ranks take part in a call. A call that needs all ranks, while some have joined, throws on
/// those that have not, at once, in every shard mode.
///
/// If the optimizer is sharded, ranks meet in a barrier before they reduce and in each call that
/// needs them all; a joined rank meets them there for its join(), which is a mismatch. Otherwise
/// the engine answers for joined ranks.
class Attendance {
 public:
  /// The arguments outlive this.
  Attendance(TrainingContext& context, const GradientReducers& reducers)
      : context_(context), reducers_(reducers) {}

  /// A barrier that is numbered like the collectives of units, after those in flight. Throws
  /// MismatchError on all ranks if purposes differ. Until it returns false, calls `meanwhile` again
  /// and again while it waits.
  void meet(const std::string& purpose, const std::function<bool()>& meanwhile = nullptr);
  /// The same on active ranks, but ranks that have joined are no error: finds out who they are.
  void find_joined_before(const std::string& purpose);
  /// After a mismatch of numbered collectives: whether it happened because some ranks have joined.
  /// If so, collective: all ranks come here, since all have the same text, and joined ranks then
  /// wait for commands.
  bool find_joined(const MismatchError& error);
  /// Throws InvalidArgument on all ranks that have not joined, if some have. Collective. Calls
  /// `refuse` before, if joined ranks wait for commands since then.
  void require_all(const std::string& call, const std::function<void()>& refuse);
  /// On a rank that has joined: submits buckets as active ranks do in backward(), until one of them
  /// makes another call; joined ranks then wait for commands. Returns false if all have joined.
  bool join();
  /// A new step begins, in which all ranks may be active.
  void restart() { context_.step.joined_ranks.clear(); }

 private:
  bool submit_without_wait() const;

  TrainingContext& context_;
  const GradientReducers& reducers_;
};

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
