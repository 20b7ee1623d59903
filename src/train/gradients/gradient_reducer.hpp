#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kolo/torch/distributed_optimizer.hpp"
#include "train/buckets/bucket_plan.hpp"
#include "train/buckets/gradient_buckets.hpp"
#include "train/gradients/bucket_pipeline.hpp"
#include "train/gradients/parameter_watch.hpp"
#include "train/gradients/reduced_gradients.hpp"
#include "train/gradients/residuals.hpp"
#include "train/gradients/step_reductions.hpp"
#include "train/sharding/parameter_shards.hpp"
#include "train/wrapped/libtorch_optimizer.hpp"

namespace kolo::train {

/// Calls back for every gradient that backward() accumulates. An exception of a callback ends
/// backward().
class GradHooks {
 public:
  using Callback = std::function<void(std::size_t index)>;

  /// Calls `before(i)` just before a new gradient is added to parameters[i].grad() and `after(i)`
  /// just after it, on the thread of backward().
  GradHooks(const std::vector<at::Tensor>& parameters, Callback before, Callback after);
  ~GradHooks();
  /// Whether any living GradHooks calls back for the parameter.
  static bool are_on(const at::Tensor& parameter);
  GradHooks(const GradHooks&) = delete;  // the hooks refer to it
  GradHooks& operator=(const GradHooks&) = delete;

 private:
  struct Installed;

  Callback before_;
  Callback after_;
  std::vector<Installed> installed_;
};

/// Reduces the gradients of some parameters over all ranks, from autograd's hooks to the
/// gradients that the wrapped optimizer uses.
///
/// After the first reduction, buckets are laid out anew in the order in which gradients arrived.
/// With a sharded optimizer, parameters are sharded then, and later reductions give each rank only
/// the gradients of its shards. With Shard::Full they are sharded at construction, in the order of
/// parameters, and only the order of buckets changes later; where ranks share no memory, a bucket
/// has the parameters of one unit, see GatheredUnits.
class GradientReducer {
 public:
  using GradientVisitor = DistributedOptimizer::GradientVisitor;

  /// `frozen` parameters are gathered with the others, if parameters are gathered on use.
  /// `before_gradient` is called before each gradient is added. `prefix` starts the names of
  /// operations. Collective over the set of the options; objects that `setup` refers to outlive
  /// this.
  GradientReducer(std::vector<ReducedParameter> parameters, std::vector<ReducedParameter> frozen,
                  const ReductionSetup& setup, std::string prefix,
                  std::function<void()> before_gradient);

  /// Whether any reducer, perhaps of another optimizer, reduces the parameter's gradients.
  static bool reduces(const at::Tensor& parameter) { return GradHooks::are_on(parameter); }

  /// A backward() of the step has ended.
  void pass_ended() { layout_->pipeline->pass_ended(); }
  /// Submits the buckets that backward() has not submitted.
  void submit_rest();
  /// The same as far as that does not wait. Returns whether any are left.
  bool submit_without_wait() { return layout_->pipeline->submit_without_wait(); }
  /// Waits for all submitted buckets and assigns their gradients. Returns the first error; one is
  /// that the program has replaced a gradient meanwhile.
  std::exception_ptr finish();

  /// After the first successful reduction: lays buckets out in the order of arrival, and shards
  /// parameters and their state in the wrapped optimizer. Collective then; does nothing later.
  void lay_out_by_arrival();
  /// If nothing was reduced yet, lays buckets out in a known order of parameters, and shards as
  /// lay_out_by_arrival() does. `sparse[i]`: gradients of parameter i are reduced as sparse ones.
  void lay_out_by(const std::vector<std::size_t>& order, const std::vector<bool>& sparse);
  /// The order of the layout; empty before the first reduction.
  std::vector<std::size_t> order() const;
  int layouts() const { return layouts_; }

  const std::string& prefix() const { return prefix_; }
  const std::vector<ReducedParameter>& parameters() const { return parameters_; }
  const GradientBuckets& buckets() const { return layout_->buckets; }
  bool is_sparse(std::size_t parameter) const { return is_sparse_[parameter]; }
  /// Null while parameters are not sharded.
  const ParameterShards* shards() const { return reduced_->shards(); }
  Residuals& residuals() { return residuals_; }
  const Residuals& residuals() const { return residuals_; }
  /// Lays out residuals like the buckets, with the values of `residuals`.
  void lay_out_residuals(const Residuals::ByParameter& residuals);

  /// Appends the gradients of parameters, or of this rank's leaves.
  void append_gradients(std::vector<at::Tensor>& gradients) const { reduced_->append(gradients); }
  /// Calls `visit` with this rank's pieces of the reduced gradients, which it may change or
  /// undefine.
  void for_each_gradient(const GradientVisitor& visit);
  /// Undefines the gradients that are in buckets and shards.
  void clear_gradients();
  /// Takes the stand-ins for sharded gradients away.
  void end_withholding() { reduced_->make_way(); }

  bool has_arrivals() const { return layout_->arrivals.any(); }  ///< since the last step
  /// Whether the program has undefined gradients that have arrived since the last step, and whether
  /// it has left any.
  bool has_dropped() const;
  bool has_kept() const;
  /// Gradients that the program has undefined before their bucket was submitted have not arrived.
  void forget_dropped();
  /// Drops the reduced gradients of the parameters whose grad() the program has undefined since
  /// they arrived, and adds their names to `names`. After the reduction, throws InvalidArgument if
  /// the program has put another gradient in place of one that is sharded.
  void drop_undefined(std::vector<std::string>& names);
  /// Drops the reduced gradient of a parameter.
  void drop(const std::string& name);
  /// Whether reduced gradients have not been cleared.
  bool has_gradients() const;
  /// The name of a parameter that has changed since its gradient arrived; empty if none has.
  std::string changed_since_arrival() const;
  const ParameterWatch& watch() const { return watch_; }
  /// All ranks have written the same values to the parameters that ranks share.
  void accept_writes() { watch_.refuse_writes(); }

 private:
  /// A layout of the buckets, with the objects that refer to it.
  struct Layout {
    Layout(GradientReducer& reducer, GradientBuckets new_buckets);

    bool shares_slots() const { return buckets.plan().slots > 0; }

    GradientBuckets buckets;
    const bool reduces_by_pass;  // every backward pass is reduced
    Arrivals arrivals;
    StepReductions reductions;
    std::unique_ptr<BucketPipeline> pipeline;
  };

  bool is_sharded() const { return setup_.options.shard != Shard::None; }
  bool is_full() const { return setup_.options.shard == Shard::Full; }
  int passes() const { return setup_.options.backward_passes_per_step; }
  void install_hooks(std::function<void()> before_gradient);
  void require_expected(std::size_t parameter) const;
  std::string cause_of_surplus(std::size_t parameter) const;
  void take_gradient(std::size_t parameter);
  bool is_submitted(std::size_t parameter) const;
  bool is_dropped(std::size_t parameter) const;
  bool is_replaced(std::size_t parameter) const;
  void drop(std::size_t parameter);

  /// Whether buckets are sharded, or about to be.
  bool is_for_shards() const { return is_full() || (!arrived_ && is_sharded()); }
  std::vector<PlannedParameter> planned_parameters(const std::vector<ReducedParameter>& parameters,
                                                   std::size_t first_number) const;
  std::vector<PlannedParameter> planned_parameters() const;
  std::size_t bucket_bytes() const;
  bool is_on_gpu() const;
  std::size_t unit_bytes() const;
  BucketPlan plan(const std::vector<std::size_t>& order) const;
  BucketPlan plan_of_gradients(BucketPlan plan) const;
  OperationOptions operation_options(const std::string& what) const;
  GradientBuckets make_buckets(BucketPlan plan);
  void lay_out(const std::vector<std::size_t>& order);
  void rebuild_layout(const std::vector<std::size_t>& order);
  void shard_parameters(const BucketPlan& plan);
  void plan_units();
  std::vector<std::size_t> by_unit(const std::vector<ReducedParameter>& parameters,
                                   std::size_t first_number) const;
  std::unique_ptr<ParameterMemory> make_full_memory(const BucketPlan& plan) const;
  void shard_at_once();
  void shard(const BucketPlan& plan, std::unique_ptr<ParameterMemory> memory,
             std::vector<at::Tensor> gradients);
  void lay_out_slots();
  void order_buckets(const std::vector<std::size_t>& order);
  std::vector<bool> can_stay_sparse(std::vector<bool> sparse) const;

  const std::vector<ReducedParameter> parameters_;
  const std::vector<at::Tensor> tensors_;  // of parameters_
  const std::vector<ReducedParameter> frozen_;
  const ReductionSetup setup_;
  const std::string prefix_;
  ParameterWatch watch_;
  std::vector<bool> is_sparse_;          // of each parameter: its gradient is reduced as sparse
  std::optional<ArrivalOrder> arrived_;  // until the layout follows it
  int layouts_ = 0;
  Residuals residuals_;
  std::optional<UnitPlan> units_;              // if parameters are gathered when they are used
  std::unique_ptr<ReducedGradients> reduced_;  // outlives layout_
  std::unique_ptr<Layout> layout_;
  std::vector<std::size_t> dropped_;  // by the program, before the reduction
  std::optional<GradHooks> hooks_;    // last: destroyed first
};

}  // namespace kolo::train
