#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/graph_task.h>

#include "kolo/codec.hpp"
#include "kolo/collectives.hpp"
#include "kolo/compression.hpp"
#include "kolo/handle.hpp"
#include "kolo/torch/bucket_hook.hpp"
#include "kolo/torch/distributed_optimizer.hpp"
#include "kolo/torch/program_stream.hpp"
#include "kolo/torch/tensor_handle.hpp"
#include "train/buckets/bucket_plan.hpp"
#include "train/buckets/gradient_buckets.hpp"
#include "train/gradients/residuals.hpp"
#include "train/sharding/gathered_units.hpp"
#include "train/sharding/parameter_shards.hpp"
#include "train/wrapped/libtorch_optimizer.hpp"

namespace kolo::train {

/// How the gradients of an optimizer are compressed.
struct GradientCompression {
  Compression compression;
  const Codec* codec = nullptr;  ///< of that name; null: it is a compressor
  /// Only without shards: the scope of the all-reduces.
  CompressionScope scope = CompressionScope::Everywhere;
  bool is_of_replicas = false;      ///< applies only to sums over ranks that hold the same shard
  bool has_error_feedback = false;  ///< of the codec

  /// For the sum over all ranks, or over those that hold different shards.
  Compression of(const Bucket& bucket) const {
    return is_of_replicas ? Compression() : of_replicas(bucket);
  }
  /// For the sum over the ranks that hold the same shard.
  Compression of_replicas(const Bucket& bucket) const {
    return bucket.is_compressed ? compression : Compression();
  }
  bool has_codec(const Bucket& bucket) const { return codec != nullptr && bucket.is_compressed; }
  /// Whether the codec encodes the reduction of the whole bucket, not that of shards.
  bool encodes_whole(const Bucket& bucket) const { return has_codec(bucket) && !is_of_replicas; }
  /// Whether the ranks of a node share one residual per bucket, each holding a part of it.
  bool has_residual_per_node() const { return is_of_replicas || is_piecewise(); }
  /// Whether a rank encodes its piece of its node's sum of a bucket.
  bool is_piecewise() const { return scope == CompressionScope::BetweenNodes; }

  /// Bytes that rank `rank` of `ranks` sends with the codec to all-reduce `count` elements.
  std::uint64_t allreduce_bytes(std::size_t count, int rank, int ranks) const;
  /// Bytes that each of `ranks` ranks sends with the codec to reduce-scatter `count` elements, a
  /// multiple of `ranks`.
  std::uint64_t reduce_scatter_bytes(std::size_t count, int ranks) const;
};

/// The state of a training step on this rank.
enum class StepPhase : std::uint8_t {
  Accumulating,  ///< gradients arrive, no bucket is in flight
  Reducing,      ///< some buckets are in flight
  Synchronized,  ///< all gradients are reduced; no more may arrive before step() or zero_grad()
  Failed,        ///< backward() has thrown the error of a bucket; others may be in flight
};

/// Holds the phase. TrainingEngine and the reductions report its transitions.
class StepPhases {
 public:
  StepPhase current() const { return phase_; }
  /// Whether buckets have been submitted and not waited for.
  bool is_in_flight() const { return phase_ == StepPhase::Reducing || phase_ == StepPhase::Failed; }

  void submit() {  // a bucket
    if (phase_ == StepPhase::Accumulating) phase_ = StepPhase::Reducing;
  }
  void fail() { phase_ = StepPhase::Failed; }
  /// All buckets have completed.
  void finish(bool has_succeeded) {
    phase_ = has_succeeded ? StepPhase::Synchronized : StepPhase::Accumulating;
  }
  /// After step(), or when gradients are discarded.
  void restart() { phase_ = StepPhase::Accumulating; }

 private:
  StepPhase phase_ = StepPhase::Accumulating;
};

/// Follows the program's calls of backward(). Autograd does not report the end of one that throws.
class BackwardPass {
 public:
  /// Called in backward(): whether this is the first call in it.
  bool is_first_call() {
    const int task = torch::autograd::get_current_graph_task_id();
    return std::exchange(task_, task) != task;
  }
  void begin() {
    has_failed_ = has_failed_ || is_running_;
    is_running_ = true;
  }
  /// `is_pass`: not under no_sync().
  void end(bool is_pass) {
    is_running_ = false;
    ++ended_;
    if (is_pass) ++passes_;
  }
  std::uint64_t ended() const { return ended_; }
  /// Passes that have ended since the last step.
  int passes() const { return passes_; }
  /// Whether one has begun that has not ended: at the first gradient of the next, it has thrown.
  bool is_running() const { return is_running_; }
  /// Whether one has thrown since the last step. Also true if one runs within another.
  bool has_failed() const { return has_failed_; }
  void restart() {
    has_failed_ = is_running_ = false;
    passes_ = 0;
  }

 private:
  int task_ = -1;
  bool is_running_ = false;
  bool has_failed_ = false;
  std::uint64_t ended_ = 0;
  int passes_ = 0;
};

/// The kinds of backward passes that gradients come from.
struct PassKinds {
  bool counted = false;    ///< of DistributedOptimizer::backward(), with a count
  bool uncounted = false;  ///< of at::Tensor::backward()
};

/// State of the current step that the reducers of one optimizer share.
struct StepState {
  using Clock = std::chrono::steady_clock;

  StepPhases phases;
  BackwardPass backward;
  int no_sync = 0;                ///< guards alive
  bool is_active = true;          ///< this rank has not joined
  std::vector<int> joined_ranks;  ///< in this step, of a sharded optimizer, see Attendance
  PassKinds own_passes;           ///< of this rank since the last step
  bool has_any_counted = false;   ///< a pass of any rank, according to this step's reductions
  /// Of what ranks do alike, see RankComparison; none if there is one rank.
  std::optional<std::uint32_t> digest;
  bool digests_differ = false;  ///< according to this step's reductions
  /// The current divisor of losses of backward(loss_sum, count), equal on all ranks.
  std::optional<double> loss_reference;
  Clock::time_point first_gradient{};
  DistributedOptimizer::StepTimes times;

  RankFlags flags() const { return {is_active, own_passes.counted, digest}; }
  double seconds_until(Clock::time_point point) const {
    return std::chrono::duration<double>(point - first_gradient).count();
  }
  void start_clock() {
    if (first_gradient == Clock::time_point{}) first_gradient = Clock::now();
  }
};

/// The reduction of one bucket, from submission to completion.
///
/// Average and Sum reduce the whole bucket in one operation, flags included. A sharded bucket is
/// reduce-scattered, and each rank then sums its shard with its replicas. For sharded buckets,
/// Adasum, bucket hooks, codecs and on a GPU, the flags are reduced separately.
class BucketReduction {
 public:
  /// How the elements are sent. `residual` belongs to a codec, or is undefined.
  struct Coding {
    const GradientCompression& compression;
    at::Tensor residual;
  };
  /// A program's hook for one bucket, which is called with its gradients [n].
  using BoundHook = std::function<std::optional<TensorHandle>(const at::Tensor& gradients)>;

  /// Submits the bucket under `name`, which is unique among buckets in flight; with the `hook`, if
  /// there is one.
  BucketReduction(const GradientBuckets& buckets, std::size_t index, const std::string& name,
                  const DistributedOptimizerOptions& options, const Coding& coding,
                  const BoundHook& hook);
  /// Submits a sharded bucket under `name`; writes this rank's shard of the gradients to `shard`
  /// [n], which outlives this.
  BucketReduction(const GradientBuckets& buckets, std::size_t index, std::string name,
                  const DistributedOptimizerOptions& options, const Coding& coding,
                  const ShardSets& sets, const at::Tensor& shard);

  /// Starts the sum over replicas if this rank's shard is ready. Does not block.
  void advance();
  /// Whether wait() would return immediately.
  bool is_ready() const;
  /// Waits for at most `duration`, and returns is_ready(). Throws no error of the reduction.
  bool wait_for(std::chrono::steady_clock::duration duration);
  /// Blocks until gradients and flags of all ranks are reduced; on a GPU the current stream waits
  /// for the gradients. Throws the first error of its operations after all of them have ended.
  void wait();

  /// Times of the bucket's or its flags' reduction; see Handle.
  std::chrono::steady_clock::time_point started() const { return handle_.started(); }
  std::chrono::steady_clock::time_point ended() const { return handle_.ended(); }

 private:
  /// The sum over replicas, until this rank's shard is ready.
  struct ReplicaSum {
    at::Tensor shard;
    AllreduceOptions options;
  };
  void begin_replica_sum();
  void take_hook_result();

  ProgramStream stream_;             // orders the operations below
  Handle handle_;                    // of the whole bucket, or of its flags
  std::optional<Handle> gradients_;  // if they are reduced without the flags
  std::optional<ReplicaSum> pending_replica_sum_;
  std::optional<Handle> replica_sum_;
  std::optional<TensorHandle> hook_;
  at::Tensor hook_target_;  // receives the hook's result
};

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
};

/// The reductions of a step, one for each bucket: submits them, waits for them and assigns reduced
/// gradients to parameters or to this rank's leaves. A BucketPipeline decides which bucket is
/// submitted when.
class StepReductions {
 public:
  /// `shards` and `withheld` are null while parameters are not sharded. `names` are the names of
  /// the buckets' operations, `parameter_names` those of the parameters of `buckets`. `buckets`,
  /// `residuals`, `shards`, `withheld` and objects that `setup` refers to outlive this.
  StepReductions(ReductionSetup setup, GradientBuckets& buckets, Residuals& residuals,
                 const ParameterShards* shards, WithheldGradients* withheld,
                 std::vector<std::string> names, std::vector<std::string> parameter_names);

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
  bool is_submitted(std::size_t bucket) const { return states_[bucket].reduction.has_value(); }
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
    std::optional<BucketReduction> reduction;
    bool is_complete = false;
    std::vector<SparseReduction> sparse;
    std::exception_ptr sparse_error;     // of a sparse gradient whose reduction could not start
    std::vector<ProgramStream> streams;  // on which gradients were computed
    StepState::Clock::time_point first_gradient{};  // since the last submission
    StepState::Clock::time_point submitted{};
  };

  void withhold_own(const Bucket& bucket);
  void withhold_present(const Bucket& bucket);
  at::Tensor begin_residual(std::size_t bucket);
  BucketReduction::BoundHook bound_hook(std::size_t bucket, const at::Tensor& residual) const;
  GradientBucket bucket_for_hook(std::size_t bucket, const at::Tensor& gradients,
                                 const at::Tensor& residual) const;
  at::Tensor destination(std::size_t bucket, bool is_first);
  void correct_divisor(std::size_t bucket, at::Tensor gradients);
  void note_bucket(State& state, const std::string& name);
  void submit_sparse(std::size_t bucket, std::size_t member);
  void assign_sparse(const Bucket& bucket, SparseReduction& reduction);

  const ReductionSetup setup_;
  GradientBuckets& buckets_;
  Residuals& residuals_;
  const ParameterShards* const shards_;
  WithheldGradients* const withheld_;
  const std::vector<std::string> names_;
  const std::vector<std::string> parameter_names_;
  std::vector<State> states_;
  std::vector<at::Tensor> later_passes_;  // of each slot
};

}  // namespace kolo::train
