#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "torch/buckets/gradient_buckets.hpp"
#include "torch/reduction/bucket_reduction.hpp"
#include "torch/reduction/step_state.hpp"
#include "torch/sharding/parameter_shards.hpp"
#include "torch/sharding/shard_sets.hpp"

namespace kolo::tensors {

/// What all reductions of an optimizer have in common.
struct ReductionSetup {
  const DistributedOptimizerOptions& options;
  const ShardSets& sets;
  const BucketHook& hook;
  StepState& step;
};

/// The reductions of a step, one for each bucket: begins them, waits for them and assigns reduced
/// gradients to what is updated by them, parameters or this rank's leaves. Which bucket is submitted
/// when is a BucketPipeline's business.
class StepReductions {
 public:
  /// `shards` is null while parameters are not sharded. Buckets lie in `slots` places of memory; 0:
  /// each in its own. `name` begins the names of operations. All arguments outlive this.
  StepReductions(ReductionSetup setup, std::vector<at::Tensor> parameters, GradientBuckets& buckets,
                 const ParameterShards* shards, std::size_t slots, std::string name);

  std::size_t size() const { return states_.size(); }
  const GradientBuckets& buckets() const { return buckets_; }
  StepState& step() { return setup_.step; }

  /// A gradient of the bucket has been made on the current stream: that of forward().
  void note_stream(std::size_t bucket);
  /// Begins the reduction of what the bucket holds; its gradients may be submitted again only after
  /// complete().
  void submit(std::size_t bucket);
  /// Begins what waits for a shard of this rank. Does not block.
  void advance();

  /// Since finish(): whether the bucket was submitted at all; whether complete() would return at
  /// once; whether complete() was called for the last submission.
  bool is_submitted(std::size_t bucket) const { return states_[bucket].reduction.has_value(); }
  bool is_ready(std::size_t bucket) const { return states_[bucket].reduction->is_ready(); }
  bool is_complete(std::size_t bucket) const { return states_[bucket].is_complete; }

  /// Waits for the bucket and assigns its gradients; does nothing the second time. Throws the
  /// reduction's error.
  void complete(std::size_t bucket);
  /// Completes all buckets, all of which have been submitted, and begins a new step. Returns the
  /// first error.
  std::exception_ptr finish();

 private:
  struct State {
    int submissions = 0;  // since finish()
    std::optional<BucketReduction> reduction;
    bool is_complete = false;
    /// Of members with sparse gradients, by their place among the members.
    std::vector<std::pair<std::size_t, TensorHandle>> sparse;
    std::vector<ProgramStream> streams;  // on which gradients have been made
    StepState::Clock::time_point submitted{};
  };

  at::Tensor destination(std::size_t bucket);
  void correct_divisor(std::size_t bucket, at::Tensor gradients);
  void assign_sparse(const Bucket& bucket, std::size_t member, TensorHandle& sum);

  const ReductionSetup setup_;
  const std::vector<at::Tensor> parameters_;
  GradientBuckets& buckets_;
  const ParameterShards* const shards_;
  const std::string name_;
  std::vector<State> states_;
  std::vector<at::Tensor> later_passes_;  // of each slot: this rank's shard, to be added
};

}  // namespace kolo::tensors
