#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kolo/torch/bucket_hook.hpp"
#include "kolo/torch/distributed_optimizer.hpp"
#include "kolo/torch/program_stream.hpp"
#include "kolo/torch/tensor_handle.hpp"
#include "train/buckets/gradient_buckets.hpp"
#include "train/gradients/reduced_gradients.hpp"
#include "train/gradients/residuals.hpp"
#include "train/gradients/step_state.hpp"
#include "train/sharding/gathered_units.hpp"
#include "train/wrapped/wrapped_optimizer.hpp"

namespace kolo::train {

/// Shared by all reductions of an optimizer.
struct ReductionSetup {
  const DistributedOptimizerOptions& options;
  const GradientCompression& compression;
  const ShardSets& sets;
  const BucketHook& hook;
  WrappedOptimizer& wrapped;
  StepState& step;
  const std::shared_ptr<UnitCalls>& unit_calls;
  const bool& gathers_on_use;
  const std::int64_t& steps;  ///< taken so far
  bool joined_take_part;      ///< with zeros: a joined rank's shards are needed
};

/// The reductions of a step, one for each bucket: submits them, waits for them and assigns reduced
/// gradients. A BucketPipeline decides which bucket is submitted when.
class StepReductions {
 public:
  /// `names` are the names of the buckets' operations, `parameter_names` those of the parameters
  /// of `buckets`. `buckets`, `residuals`, `reduced` and objects that `setup` refers to outlive
  /// this.
  StepReductions(ReductionSetup setup, GradientBuckets& buckets, Residuals& residuals,
                 ReducedGradients& reduced, std::vector<std::string> names,
                 std::vector<std::string> parameter_names);

  /// Undefines the gradients of buckets that are still being reduced: other ranks may write to
  /// them, so they can never be used.
  ~StepReductions();
  StepReductions(const StepReductions&) = delete;  // hooks of buckets refer to it
  StepReductions& operator=(const StepReductions&) = delete;

  std::size_t size() const { return states_.size(); }
  const GradientBuckets& buckets() const { return buckets_; }
  StepState& step() { return setup_.step; }

  /// A gradient of the bucket was computed on the current stream, the one of its forward().
  void note_gradient(std::size_t bucket);
  /// Submits the bucket with the gradients that it holds. May be repeated after complete(). Throws
  /// the error of a sparse gradient whose reduction cannot start after all others have; finish()
  /// returns it again.
  void submit(std::size_t bucket);
  /// Starts sums over replicas whose shards are ready. Does not block.
  void advance();

  /// Since finish(): whether the bucket was submitted; whether complete() would return immediately,
  /// at once or after at most `duration`; whether complete() was called for the last submission.
  bool is_submitted(std::size_t bucket) const { return states_[bucket].reduction != nullptr; }
  bool is_ready(std::size_t bucket) const { return states_[bucket].reduction->is_ready(); }
  bool wait_for(std::size_t bucket, StepState::Clock::duration duration) {
    return states_[bucket].reduction->wait_for(duration);
  }
  bool is_complete(std::size_t bucket) const { return states_[bucket].is_complete; }

  /// Waits for the bucket and assigns its gradients; does nothing the second time. Throws the
  /// reduction's error.
  void complete(std::size_t bucket);
  /// Completes all buckets that were submitted, and begins a new step. Returns the first error.
  std::exception_ptr finish();

 private:
  struct SparseReduction {
    std::size_t member;  // of the bucket
    at::Tensor own;      // this rank's gradient, if it has one
    TensorHandle sum;
  };
  struct State {
    int submissions = 0;  // since finish()
    std::unique_ptr<BucketReduction> reduction;
    bool is_complete = false;
    std::vector<SparseReduction> sparse;
    std::exception_ptr sparse_error;     // of a sparse gradient whose reduction could not start
    std::vector<ProgramStream> streams;  // on which gradients were computed
    StepState::Clock::time_point first_gradient{};  // since the last submission
    StepState::Clock::time_point submitted{};
  };

  at::Tensor begin_residual(std::size_t bucket);
  BoundHook bound_hook(std::size_t bucket, const at::Tensor& residual) const;
  GradientBucket bucket_for_hook(std::size_t bucket, const at::Tensor& gradients,
                                 const at::Tensor& residual) const;
  /// See factor_in_copy.
  double factor() const;
  /// The reduction has failed: gradients that are still in the bucket become this rank's own again.
  void undo_factor(const Bucket& bucket);
  void correct_divisor(std::size_t bucket, at::Tensor gradients);
  void note_bucket(State& state, const std::string& name);
  void submit_sparse(std::size_t bucket, std::size_t member);
  void assign_sparse(const Bucket& bucket, SparseReduction& reduction);

  const ReductionSetup setup_;
  GradientBuckets& buckets_;
  Residuals& residuals_;
  ReducedGradients& reduced_;
  const std::vector<std::string> names_;
  const std::vector<std::string> parameter_names_;
  std::vector<State> states_;
};

}  // namespace kolo::train
