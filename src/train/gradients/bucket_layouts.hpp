#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "train/buckets/bucket_plan.hpp"
#include "train/buckets/gradient_buckets.hpp"
#include "train/gradients/bucket_pipeline.hpp"
#include "train/gradients/parameter_watch.hpp"
#include "train/gradients/reduced_gradients.hpp"
#include "train/gradients/residuals.hpp"
#include "train/gradients/step_reductions.hpp"
#include "train/sharding/parameter_shards.hpp"

namespace kolo::train {

/// The parameters of a reducer, none of which it owns.
struct ParametersToReduce {
  const std::vector<ReducedParameter>& all;
  const std::vector<at::Tensor>& tensors;       ///< of `all`
  const std::vector<ReducedParameter>& frozen;  ///< gathered with the others, where they are
  ParameterWatch& watch;                        ///< told when they are sharded
};

/// The buckets of a reducer as they are laid out now, with the objects that refer to them.
struct BucketLayout {
  BucketLayout(const ParametersToReduce& parameters, const ReductionSetup& setup,
               const std::string& prefix, GradientBuckets new_buckets, Residuals& residuals,
               ReducedGradients& reduced, bool waits_in_backward);

  bool shares_slots() const { return buckets.plan().slots > 0; }

  GradientBuckets buckets;
  const bool reduces_by_pass;  ///< every backward pass is reduced
  Arrivals arrivals;
  StepReductions reductions;
  std::unique_ptr<BucketPipeline> pipeline;
};

/// Lays out the buckets of a reducer as a shard mode wants them, and shards its parameters. The
/// first layout begins with the last parameter; after the first reduction, or by a checkpoint, the
/// order is that in which gradients arrive. A mode chooses one of three; who reduces does not ask
/// which.
class BucketLayouts {
 public:
  virtual ~BucketLayouts() = default;

  BucketLayout& now() { return *now_; }
  const BucketLayout& now() const { return *now_; }
  ReducedGradients& reduced() const { return *reduced_; }
  Residuals& residuals() { return residuals_; }
  const Residuals& residuals() const { return residuals_; }
  /// Lays out residuals like the buckets, with the values of `residuals`.
  void lay_out_residuals(const Residuals::ByParameter& residuals);

  /// Records the arrival of a gradient, until buckets are laid out by arrival.
  void record(std::size_t parameter, bool is_sparse) {
    if (arrived_) arrived_->record(parameter, is_sparse);
  }
  /// After the first successful reduction: lays buckets out in the order of arrival. Collective
  /// then; does nothing later.
  void follow_arrivals();
  /// If nothing was reduced yet, lays buckets out in a known order of parameters. `sparse[i]`:
  /// gradients of parameter i are reduced as sparse ones, if the mode does that.
  void follow(const std::vector<std::size_t>& order, const std::vector<bool>& sparse);
  /// The order that the layout follows; empty before the first reduction.
  std::vector<std::size_t> order() const;
  bool is_sparse(std::size_t parameter) const { return is_sparse_[parameter]; }
  int count() const { return count_; }  ///< of layouts so far

 protected:
  BucketLayouts(const ParametersToReduce& parameters, const ReductionSetup& setup,
                const std::string& prefix);

  virtual void lay_out(const std::vector<std::size_t>& order, const std::vector<bool>& sparse) = 0;

  std::vector<PlannedParameter> planned(const std::vector<ReducedParameter>& parameters) const;
  /// The wanted size of buckets for these.
  std::size_t bytes_for(const std::vector<PlannedParameter>& planned) const;
  BucketPlan plan(const std::vector<std::size_t>& order, std::size_t shards) const;
  /// The gradients' plan for this plan of the parameters.
  BucketPlan plan_of_gradients(BucketPlan plan) const;
  OperationOptions operation_options(const std::string& what, ProcessSet* set) const;
  GradientBuckets make_buckets(BucketPlan plan, ProcessSet* set);
  /// Replaces the layout by one of these buckets.
  void use(GradientBuckets buckets);
  void shard(const BucketPlan& plan, std::unique_ptr<ParameterMemory> memory,
             std::vector<at::Tensor> gradients);
  /// Replaces the layout by one in which the buckets of the shards share slots of memory.
  void use_slots();

  ProcessSet& sharded() const { return *setup_.sets.sharded; }
  std::size_t shard_count() const { return static_cast<std::size_t>(sharded().size()); }

  const ParametersToReduce parameters_;
  const ReductionSetup setup_;
  const std::string& prefix_;
  std::vector<bool> is_sparse_;  // of each parameter: its gradient is reduced as sparse
  Residuals residuals_;
  std::unique_ptr<ReducedGradients> reduced_;  // outlives now_
  std::unique_ptr<BucketLayout> now_;
  bool waits_in_backward_ = true;  // for the memory of a bucket

 private:
  std::optional<ArrivalOrder> arrived_;  // until the layout follows it
  int count_ = 0;
};

/// Those of the mode in the options of `setup`, with a first layout. Collective over its set;
/// `parameters`, `prefix` and what `setup` refers to outlive the result.
std::unique_ptr<BucketLayouts> make_bucket_layouts(const ParametersToReduce& parameters,
                                                   const ReductionSetup& setup,
                                                   const std::string& prefix);

}  // namespace kolo::train
