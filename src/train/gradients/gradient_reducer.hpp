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
#include "train/gradients/bucket_layouts.hpp"
#include "train/gradients/grad_hooks.hpp"
#include "train/gradients/parameter_watch.hpp"

namespace kolo::train {

/// Reduces the gradients of some parameters over all ranks, from autograd's hooks to the gradients
/// that the wrapped optimizer uses. BucketLayouts decides in which buckets, and shards parameters
/// where the mode does.
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

  /// A backward() of the step has ended.
  void pass_ended() { now().pipeline->pass_ended(); }
  /// Submits the buckets that backward() has not submitted.
  void submit_rest();
  /// The same as far as that does not wait. Returns whether any are left.
  bool submit_without_wait() { return now().pipeline->submit_without_wait(); }
  /// Waits for all submitted buckets and assigns their gradients. Returns the first error; one is
  /// that the program has replaced a gradient meanwhile.
  std::exception_ptr finish();

  BucketLayouts& layouts() { return *layouts_; }
  const BucketLayouts& layouts() const { return *layouts_; }
  const GradientBuckets& buckets() const { return now().buckets; }
  /// Null while parameters are not sharded.
  const ParameterShards* shards() const { return reduced().shards(); }
  const std::string& prefix() const { return prefix_; }
  const std::vector<ReducedParameter>& parameters() const { return parameters_; }

  /// Appends the gradients of parameters, or of this rank's leaves.
  void append_gradients(std::vector<at::Tensor>& gradients) const { reduced().append(gradients); }
  /// Calls `visit` with this rank's pieces of the reduced gradients, which it may change or
  /// undefine.
  void for_each_gradient(const GradientVisitor& visit);
  /// Undefines the gradients that are in buckets and shards.
  void clear_gradients();
  /// Undefines what stands in for sharded gradients.
  void remove_stand_ins() { reduced().remove_stand_ins(); }

  bool has_arrivals() const { return now().arrivals.any(); }  ///< since the last step
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
  BucketLayout& now() { return layouts_->now(); }
  const BucketLayout& now() const { return layouts_->now(); }
  ReducedGradients& reduced() const { return layouts_->reduced(); }
  int passes() const { return setup_.options.backward_passes_per_step; }
  void install_hooks(std::function<void()> before_gradient);
  void require_expected(std::size_t parameter) const;
  std::string cause_of_surplus(std::size_t parameter) const;
  void take_gradient(std::size_t parameter);
  bool is_submitted(std::size_t parameter) const;
  bool is_dropped(std::size_t parameter) const;
  bool is_replaced(std::size_t parameter) const;

  const std::vector<ReducedParameter> parameters_;
  const std::vector<at::Tensor> tensors_;  // of parameters_
  const std::vector<ReducedParameter> frozen_;
  const ReductionSetup setup_;
  const std::string prefix_;
  ParameterWatch watch_;
  const std::unique_ptr<BucketLayouts> layouts_;
  std::vector<std::size_t> dropped_;  // by the program; their reduced gradients are still there
  std::optional<GradHooks> hooks_;    // last: destroyed first
};

}  // namespace kolo::train
