#include "train/gradients/bucket_reduction.hpp"

#include <string>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "runtime/engine/engine.hpp"
#include "train/tensors/tensor_memory.hpp"

namespace kolo::train {

bool BucketReduction::is_ready() const { return handle_.is_ready() && are_gradients_ready(); }

bool BucketReduction::end_by(Clock::time_point deadline) {
  for (Handle* const handle : {&handle_, gradients_ ? &*gradients_ : nullptr}) {
    if (handle == nullptr || handle->is_ready()) continue;
    const auto left = deadline - Clock::now();
    if (left <= left.zero()) return false;
    try {
      if (!handle->wait_for(left)) return false;
    } catch (const Error&) {
      // wait() throws it again.
    }
  }
  return true;
}

bool BucketReduction::wait_for(Clock::duration duration) {
  return end_by(Clock::now() + duration) && is_ready();
}

/// Waits for all, even after an error, since their memory and names are reused.
std::exception_ptr BucketReduction::end() {
  std::exception_ptr first_error;
  keep_first_error(first_error, [&] { handle_.wait(); });
  if (gradients_) keep_first_error(first_error, [&] { gradients_->wait(); });
  return first_error;
}

void BucketReduction::wait() {
  const std::exception_ptr error = end();
  stream_.order_before_current();
  if (error) std::rethrow_exception(error);
}

double factor_in_copy(const GradientBuckets& buckets, const DistributedOptimizerOptions& options,
                      bool has_hook) {
  if (buckets.device().is_cpu() || options.op != ReduceOp::Average || has_hook) return 1.0;
  const runtime::Engine& engine = *options.process_set->engine();
  const bool is_in_rank_order = engine.adds_in_rank_order(Collective::AllReduce) ||
                                engine.adds_in_rank_order(Collective::ReduceScatter);
  return is_in_rank_order ? 1.0 : 1.0 / options.process_set->size();
}

namespace {

float* data_of(const at::Tensor& residual) {
  return residual.defined() ? residual.mutable_data_ptr<float>() : nullptr;
}

AllreduceOptions reduction_of(const GradientBuckets& buckets,
                              const DistributedOptimizerOptions& options, Compression compression,
                              const std::string& name) {
  const bool is_divided = factor_in_copy(buckets, options, /*has_hook=*/false) != 1.0;
  const double predivisor = is_divided ? 1.0 : options.gradient_predivide_factor;
  return {.op = is_divided ? ReduceOp::Sum : options.op,
          .prescale = 1.0 / predivisor,
          .postscale = predivisor,
          .compression = std::move(compression),
          .join_divisor = options.join_divisor,
          .name = name,
          .process_set = options.process_set};
}

/// A separate reduction, which succeeds even if that of the gradients fails.
Handle begin_flags(const GradientBuckets& buckets, const Bucket& bucket, const std::string& name,
                   ProcessSet* process_set) {
  const at::Tensor& flags = buckets.flags_of(bucket);
  const AllreduceOptions options{.op = ReduceOp::Sum,
                                 .name = name + ".flags",
                                 .process_set = process_set,
                                 .keep_alive = std::make_shared<at::Tensor>(flags)};
  const TensorView view = view_of(flags, options.name);
  return allreduce_async(view, view, options);
}

/// One reduction for each parameter: Adasum weighs ranks by the angle between their gradients.
Handle begin_adasum(const GradientBuckets& buckets, const Bucket& bucket,
                    const AllreduceOptions& options) {
  std::vector<InputOutput> gradients;
  for (const Bucket::Member& member : bucket.members) {
    if (buckets.is_sparse(member.parameter)) continue;
    const TensorView view{buckets.memory().data() + member.offset, bucket.dtype,
                          buckets.parameters()[member.parameter].sizes().vec(),
                          buckets.memory().device()};
    gradients.push_back({view, view});
  }
  return grouped_allreduce_async(gradients, options);
}

/// By the program's hook.
class HookReduction final : public BucketReduction {
 public:
  HookReduction(ProgramStream stream, Handle flags, at::Tensor gradients, const BoundHook& hook)
      : BucketReduction(std::move(stream), std::move(flags), std::nullopt),
        target_(std::move(gradients)),
        hook_(hook(target_)) {}

  bool is_ready() const override { return !hook_ && BucketReduction::is_ready(); }
  void wait() override {
    BucketReduction::wait();
    if (hook_) take_result();
  }

 private:
  void take_result() {
    const at::Tensor result = hook_->result();
    if (result.is_same(target_)) return;
    if (!result.defined() || result.numel() != target_.numel()) {
      throw InvalidArgument("DistributedOptimizer: a bucket hook returned " +
                            (result.defined() ? std::to_string(result.numel()) + " elements"
                                              : std::string("no tensor")) +
                            " for a bucket of " + std::to_string(target_.numel()) +
                            ". It must return its reduced gradients, as many as it was given.");
    }
    const at::NoGradGuard no_grad;
    target_.copy_(result.view_as(target_));
  }

  at::Tensor target_;  // receives the hook's result
  std::optional<TensorHandle> hook_;
};

/// A reduce-scatter, and then the sum over ranks that hold the same shard.
class ReplicatedReduction final : public BucketReduction {
 public:
  ReplicatedReduction(ProgramStream stream, Handle flags, Handle scatter, at::Tensor shard,
                      AllreduceOptions sum)
      : BucketReduction(std::move(stream), std::move(flags), std::move(scatter)),
        shard_(std::move(shard)),
        options_(std::move(sum)) {}

  void advance() override {
    if (sum_ || !are_gradients_ready()) return;
    try {
      gradients().wait();  // does not block, but orders streams
    } catch (const Error&) {
      // The other nodes still wait for this rank; wait() throws the error again.
    }
    begin_sum();
  }
  bool is_ready() const override { return BucketReduction::is_ready() && sum_ && sum_->is_ready(); }
  bool wait_for(Clock::duration duration) override {
    const auto deadline = Clock::now() + duration;
    if (!end_by(deadline)) return false;
    advance();
    const auto left = deadline - Clock::now();
    if (sum_ && !sum_->is_ready() && left > left.zero()) {
      try {
        sum_->wait_for(left);
      } catch (const Error&) {
      }
    }
    return is_ready();
  }
  void wait() override {
    std::exception_ptr first_error = end();
    // Even after an error: other nodes wait for it.
    if (!sum_) keep_first_error(first_error, [&] { begin_sum(); });
    if (sum_) keep_first_error(first_error, [&] { sum_->wait(); });
    stream().order_before_current();
    if (first_error) std::rethrow_exception(first_error);
  }

 private:
  void begin_sum() {
    const TensorView view = view_of(shard_, options_.name);
    sum_ = allreduce_async(view, view, options_);
  }

  at::Tensor shard_;
  AllreduceOptions options_;
  std::optional<Handle> sum_;  // once this rank's shard is ready
};

}  // namespace

std::unique_ptr<BucketReduction> reduce_whole(const GradientBuckets& buckets, std::size_t index,
                                              const std::string& name,
                                              const DistributedOptimizerOptions& options,
                                              const Coding& coding, const BoundHook& hook) {
  ProgramStream stream = ProgramStream::current(buckets.device());
  const Bucket& bucket = buckets.buckets()[index];
  AllreduceOptions all = reduction_of(buckets, options, coding.compression.of(bucket), name);
  all.compression_scope = coding.compression.scope;
  all.stream = stream.handle();
  const bool is_plain = !hook && options.op != ReduceOp::Adasum;
  if (is_plain && !buckets.has_separate_flags() && !coding.compression.encodes_whole(bucket)) {
    Handle handle =
        allreduce_async(buckets.memory(), bucket.offset, bucket.count(), bucket.dtype, all);
    return std::make_unique<BucketReduction>(std::move(stream), std::move(handle));
  }
  Handle flags = begin_flags(buckets, bucket, name, options.process_set);
  const bool is_empty = bucket.gradient_count() == 0;  // all are sparse
  if (hook && !is_empty) {
    return std::make_unique<HookReduction>(std::move(stream), std::move(flags),
                                           buckets.flat(bucket), hook);
  }
  std::optional<Handle> gradients;
  if (is_plain && !is_empty) {
    all.residual = data_of(coding.residual);
    all.keep_alive = std::make_shared<at::Tensor>(coding.residual);
    gradients = allreduce_async(buckets.memory(), bucket.offset, bucket.gradient_count(),
                                bucket.dtype, all);
  } else if (!is_empty) {
    all.keep_alive = buckets.memory().owner();
    gradients = begin_adasum(buckets, bucket, all);
  }
  return std::make_unique<BucketReduction>(std::move(stream), std::move(flags),
                                           std::move(gradients));
}

std::unique_ptr<BucketReduction> reduce_to_shard(const GradientBuckets& buckets, std::size_t index,
                                                 const std::string& name,
                                                 const DistributedOptimizerOptions& options,
                                                 const Coding& coding, const ShardSets& sets,
                                                 const at::Tensor& shard) {
  const bool has_replicas = sets.replicas != nullptr;
  ProgramStream stream = has_replicas ? ProgramStream::beside_current(buckets.device())
                                      : ProgramStream::current(buckets.device());
  const Bucket& bucket = buckets.buckets()[index];
  Handle flags = begin_flags(buckets, bucket, name, options.process_set);
  if (bucket.gradient_count() == 0) {
    return std::make_unique<BucketReduction>(std::move(stream), std::move(flags), std::nullopt);
  }
  AllreduceOptions scatter = reduction_of(buckets, options, coding.compression.of(bucket), name);
  scatter.process_set = sets.sharded.get();
  scatter.stream = stream.handle();
  scatter.keep_alive = std::make_shared<std::pair<at::Tensor, at::Tensor>>(shard, coding.residual);
  const bool encodes_whole = coding.compression.encodes_whole(bucket);
  if (encodes_whole) scatter.residual = data_of(coding.residual);
  AllreduceOptions sum = scatter;
  if (has_replicas) {
    sum.compression = coding.compression.of_replicas(bucket);
    sum.residual = encodes_whole ? nullptr : data_of(coding.residual);
    sum.name = name + ".replicas";
    sum.process_set = sets.replicas.get();
    sum.prescale = scatter.postscale = 1.0;
    if (scatter.op == ReduceOp::Average) sum.postscale /= options.process_set->size();
    sum.op = scatter.op = ReduceOp::Sum;
  }
  Handle gradients = reduce_scatter_async(buckets.memory(), bucket.offset,
                                          {static_cast<std::int64_t>(bucket.gradient_count())},
                                          view_of(shard, name), scatter);
  if (!has_replicas) {
    return std::make_unique<BucketReduction>(std::move(stream), std::move(flags),
                                             std::move(gradients));
  }
  return std::make_unique<ReplicatedReduction>(std::move(stream), std::move(flags),
                                               std::move(gradients), shard, std::move(sum));
}

}  // namespace kolo::train
