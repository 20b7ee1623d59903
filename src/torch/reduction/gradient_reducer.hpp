#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kolo/bucket_hook.hpp"
#include "kolo/distributed_optimizer.hpp"
#include "torch/buckets/arrival_order.hpp"
#include "torch/buckets/grad_hooks.hpp"
#include "torch/buckets/gradient_buckets.hpp"
#include "torch/reduction/bucket_reduction.hpp"
#include "torch/reduction/parameter_watch.hpp"
#include "torch/sharding/parameter_shards.hpp"
#include "torch/sharding/save_guard.hpp"
#include "torch/sharding/shard_sets.hpp"
#include "torch/tensors/program_stream.hpp"

namespace kolo::tensors {

/// Where an optimizer stands between two steps.
struct StepState {
  bool is_active = true;         ///< this rank has not joined
  int active_ranks = 0;          ///< in the reductions of this step; where parameters are divided
  int no_sync = 0;               ///< guards that are alive
  bool is_synchronized = false;  ///< the gradients of this step are reduced
  bool is_in_backward = false;
  bool has_failed = false;  ///< backward() has thrown a reduction's error
  std::chrono::steady_clock::time_point first_gradient{};
  DistributedOptimizer::StepTimes times;
};

struct ReducedParameter {
  at::Tensor tensor;
  std::string name;
  int group = PlannedParameter::kNoGroup;
  std::size_t optimizer_group = 0;
};

/// Reduces the gradients of some parameters over all ranks: from hooks to buckets to reductions,
/// and back. Buckets are laid out anew once gradients have arrived for the first time, in their
/// order. Where the optimizer is sharded, the parameters are divided then, and from the next time
/// on each rank gets the gradients of its part only. Where gradients are sharded too, buckets then
/// share the memory of a few: a bucket takes its gradients as they come where the one before it in
/// that memory is over, and otherwise when all have come, waiting for that one. For this all ranks
/// submit buckets in their order, several times in a step where passes are reduced one by one.
class GradientReducer {
 public:
  /// `prefix` begins the names of its operations; `before_gradient` is called before any gradient
  /// is added. Collective over the set of `options`, which with `sets`, `step` and `hook` outlive
  /// this.
  GradientReducer(std::vector<ReducedParameter> parameters,
                  const DistributedOptimizerOptions& options, const ShardSets& sets,
                  const BucketHook& hook, StepState& step, std::string prefix,
                  std::function<void()> before_gradient);

  /// Begins what backward() has not begun: all buckets are in flight then.
  void submit_rest();
  /// Waits for all buckets and hands their gradients out; nothing is in flight then. Returns the
  /// first error.
  std::exception_ptr collect();
  /// After the first reduction that succeeded: lays the buckets out in the order of arrival on the
  /// first rank of the set that takes part, without what was sparse on any, and divides the
  /// parameters and the state that `wrapped` has of them. Collective that once.
  void follow_arrival(torch::optim::Optimizer& wrapped);

  /// The same in an order that is known already, by the parameters' places, those first that are in
  /// it; before the first reduction, otherwise it does nothing. `sparse` says of each parameter
  /// whether its gradients are reduced as sparse ones.
  void follow_order(const std::vector<std::size_t>& order, const std::vector<bool>& sparse,
                    torch::optim::Optimizer& wrapped);
  /// The order that is followed; none before the first reduction.
  std::vector<std::size_t> order() const;
  bool is_sparse(std::size_t parameter) const { return is_sparse_[parameter]; }

  /// The buckets, and where they are divided this rank's parts of them; otherwise null.
  const GradientBuckets& buckets() const { return *buckets_; }
  const ParameterShards* shards() const { return shards_ ? &*shards_ : nullptr; }
  std::size_t optimizer_group_of(std::size_t bucket) const;
  /// Begins to give what this rank has updated of a bucket's parameters to all others.
  Handle gather_parameters(std::size_t bucket) const;

  /// Adds the gradients that there are, of the parameters or of their pieces, to `gradients`.
  void list_gradients(std::vector<at::Tensor>& gradients) const;
  /// Takes the gradients that lie in buckets from their parameters, or from their pieces.
  void drop_gradients();
  /// Counts gradients anew that their parameters do not have any more.
  void forget_dropped();

  bool is_in_flight() const;
  bool has_arrivals() const;   ///< since the last step
  bool has_dropped() const;    ///< an arrived gradient that its parameter does not have any more
  bool has_gradients() const;  ///< any in its place, or in a piece
  /// The name of a parameter that is not what it was when its gradient arrived; or empty.
  std::string changed_since_arrival() const;
  const ParameterWatch& watch() const { return watch_; }
  int layouts() const { return layouts_; }
  const std::vector<ReducedParameter>& parameters() const { return parameters_; }

 private:
  struct BucketState {
    int missing = 0;                          // gradients until it can be submitted
    int submissions = 0;                      // since the last step
    std::optional<BucketInFlight> in_flight;  // or over, until all buckets are
    bool is_handed_out = false;
    // Of its members with sparse gradients, by their place among the members.
    std::vector<std::pair<std::size_t, TensorHandle>> sparse;
    std::vector<ProgramStream> streams;  // on which its gradients have been made
    std::chrono::steady_clock::time_point submitted{};
  };

  void lay_out(const std::vector<std::size_t>& order);
  void follow(const std::vector<std::size_t>& order, torch::optim::Optimizer& wrapped);
  void move_gradients(const std::vector<std::size_t>& order);
  void reset(std::size_t bucket);
  void expect_gradients(std::size_t bucket);
  void correct_divisor(std::size_t bucket, at::Tensor gradients);
  at::Tensor destination(std::size_t bucket);
  void divide(torch::optim::Optimizer& wrapped);
  void check_arrival(std::size_t index);
  void take_gradient(std::size_t index);
  void note_stream(BucketState& state) const;
  bool has_its_slot(std::size_t bucket);
  void submit(std::size_t bucket);
  std::exception_ptr submit_next();
  void submit_what_is_ready(std::size_t bucket);
  void advance();
  void hand_out(std::size_t bucket);
  TensorHandle submit_sparse(std::size_t index);
  void hand_out_sparse(const Bucket& bucket, std::size_t member, TensorHandle& sum);
  bool is_dropped(std::size_t index) const;
  double seconds(std::chrono::steady_clock::time_point point) const;

  std::vector<ReducedParameter> parameters_;
  std::vector<at::Tensor> tensors_;  // of parameters_
  const DistributedOptimizerOptions& options_;
  const ShardSets& sets_;
  const BucketHook& hook_;
  StepState& step_;
  const std::string prefix_;
  ParameterWatch watch_;

  std::optional<GradientBuckets> buckets_;
  std::optional<ParameterShards> shards_;
  std::optional<SaveGuard> save_guard_;
  int layouts_ = 0;
  std::vector<std::size_t> bucket_of_;  // of each parameter
  std::vector<int> arrivals_;           // of each parameter's gradient since the last step
  std::vector<BucketState> states_;
  // Where buckets share memory:
  bool recycles_ = false;
  int rounds_ = 1;                   // how often each is submitted in a step
  std::size_t next_ = 0;             // submission, of all rounds
  std::vector<bool> is_new_;         // of each parameter: its gradient has not been submitted
  std::vector<at::Tensor> passing_;  // of each slot: this rank's part of a later round
  std::exception_ptr first_error_;   // of this step, of those that have been handed out

  bool follows_arrival_ = false;
  std::vector<bool> is_sparse_;     // of each parameter: its gradients are reduced as sparse ones
  ArrivalOrder arrived_;            // so far on this rank; empty once it is followed
  std::optional<GradHooks> hooks_;  // last: gone first
};

}  // namespace kolo::tensors
