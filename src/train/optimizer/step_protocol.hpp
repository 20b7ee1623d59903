#pragma once

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <nlohmann/json_fwd.hpp>

#include "train/gradients/global_gradients.hpp"
#include "train/gradients/gradient_reducers.hpp"
#include "train/gradients/training_context.hpp"
#include "train/optimizer/rank_comparison.hpp"
#include "train/wrapped/options.hpp"

namespace kolo::train {

/// What the ranks of an optimizer do together in a step, beside reducing gradients. A shard mode
/// chooses one of the two below; who takes a step does not ask which.
class StepProtocol {
 public:
  using LossClosure = WrappedOptimizer::LossClosure;

  virtual ~StepProtocol() = default;

  /// Throws InvalidArgument on all ranks that have not joined, if some have. Collective.
  void require_all(const std::string& call);
  /// This rank makes a call on reduced gradients or shards, and active ranks make the same: joined
  /// ones follow, see JoinedCalls. Collective if any rank has joined. Throws MismatchError if
  /// active ranks announce different calls.
  virtual void announce(const std::string& call, const nlohmann::json& arguments) = 0;
  void announce(const std::string& call);
  /// The gradients are about to be reduced; `is_discarded`: to be dropped then.
  virtual void begin_reduction(bool is_discarded) = 0;
  /// Calls `closure` if there is one, then `reduce`, and updates the parameters.
  virtual at::Tensor step(const LossClosure& closure, const std::function<void()>& reduce) = 0;
  /// The step ends without an update.
  virtual void skip() = 0;
  /// The reduced gradients are dropped on all ranks.
  virtual void drop() = 0;
  /// A new step begins, in which all ranks may be active.
  virtual void restart() = 0;
  /// Returns the rank that joined last, once all have. Collective.
  virtual int join() = 0;

  /// Gathers a row of each rank for what its reduced gradients have in common; null if each rank
  /// has all of them.
  virtual GlobalGradients::GatherRows gather_rows() = 0;
  /// How many ranks have the same reduced gradients as this one.
  virtual int copies_of_gradients() const = 0;

 protected:
  StepProtocol(TrainingContext& context, GradientReducers& reducers)
      : context_(context), reducers_(reducers) {}

  /// Ranks that have joined. Throws MismatchError if those that have not make different calls.
  /// Collective.
  virtual std::vector<int> find_joined(const std::string& call) = 0;

  TrainingContext& context_;
  GradientReducers& reducers_;
};

/// What a joined rank does, with the arguments, for a call that active ranks have announced. Those
/// that end the step also restart the protocol.
using JoinedCalls =
    std::unordered_map<std::string, std::function<void(const nlohmann::json& arguments)>>;

/// Each rank has all reduced gradients and steps by itself: the runtime answers for joined ranks,
/// which catch up at the end of join(). The arguments outlive this.
std::unique_ptr<StepProtocol> make_whole_steps(TrainingContext& context, GradientReducers& reducers,
                                               OptionSync& option_sync,
                                               const RankComparison& comparison);

/// What sharded steps have the rest of the optimizer do.
struct ShardedStepHooks {
  std::function<void()> drop_gradients;  ///< on all ranks, those that are reduced
  std::function<void()> abandon;         ///< the step, after an error on all ranks
  std::function<void()> end_step;        ///< of a joined rank, after an update
  JoinedCalls calls;                     ///< beside those for shards
};
/// Ranks have shards, and need each other until the end of the step, also those that have joined.
std::unique_ptr<StepProtocol> make_sharded_steps(TrainingContext& context,
                                                 GradientReducers& reducers,
                                                 OptionSync& option_sync,
                                                 const RankComparison& comparison,
                                                 ShardedStepHooks hooks);

}  // namespace kolo::train
