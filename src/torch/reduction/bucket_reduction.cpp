#include "torch/reduction/bucket_reduction.hpp"

#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include <c10/core/GradMode.h>

#include "kolo/error.hpp"
#include "torch/tensors/tensor_memory.hpp"

namespace kolo::tensors {
namespace {

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

float* data_of(const at::Tensor& residual) {
  return residual.defined() ? residual.mutable_data_ptr<float>() : nullptr;
}

AllreduceOptions reduction_of(const DistributedOptimizerOptions& options, Compression compression,
                              const std::string& name) {
  return {.op = options.op,
          .prescale = 1.0 / options.gradient_predivide_factor,
          .postscale = options.gradient_predivide_factor,
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

}  // namespace

BucketReduction::BucketReduction(const GradientBuckets& buckets, std::size_t index,
                                 const std::string& name,
                                 const DistributedOptimizerOptions& options, const Coding& coding,
                                 const BoundHook& hook)
    : stream_(ProgramStream::current(buckets.device())) {
  const Bucket& bucket = buckets.buckets()[index];
  AllreduceOptions all = reduction_of(options, coding.compression.of(bucket), name);
  all.compression_scope = coding.compression.scope;
  all.stream = stream_.handle();
  const bool is_plain = !hook && options.op != ReduceOp::Adasum;
  if (is_plain && !buckets.has_separate_flags() && !coding.compression.encodes_whole(bucket)) {
    handle_ = allreduce_async(buckets.memory(), bucket.offset, bucket.count(), bucket.dtype, all);
    return;
  }
  handle_ = begin_flags(buckets, bucket, name, options.process_set);
  if (bucket.gradient_count() == 0) return;  // all are sparse
  if (is_plain) {
    all.residual = data_of(coding.residual);
    all.keep_alive = std::make_shared<at::Tensor>(coding.residual);
    gradients_ = allreduce_async(buckets.memory(), bucket.offset, bucket.gradient_count(),
                                 bucket.dtype, all);
    return;
  }
  if (!hook) {
    all.keep_alive = buckets.memory().owner();
    gradients_ = begin_adasum(buckets, bucket, all);
    return;
  }
  hook_target_ = buckets.flat(bucket);
  hook_ = hook(hook_target_);
}

BucketReduction::BucketReduction(const GradientBuckets& buckets, std::size_t index,
                                 std::string name, const DistributedOptimizerOptions& options,
                                 const Coding& coding, const ShardSets& sets,
                                 const at::Tensor& shard)
    : stream_(sets.replicas == nullptr ? ProgramStream::current(buckets.device())
                                       : ProgramStream::beside_current(buckets.device())) {
  const Bucket& bucket = buckets.buckets()[index];
  handle_ = begin_flags(buckets, bucket, name, options.process_set);
  if (bucket.gradient_count() == 0) return;
  AllreduceOptions scatter = reduction_of(options, coding.compression.of(bucket), name);
  scatter.process_set = sets.sharded.get();
  scatter.stream = stream_.handle();
  scatter.keep_alive = std::make_shared<std::pair<at::Tensor, at::Tensor>>(shard, coding.residual);
  const bool encodes_whole = coding.compression.encodes_whole(bucket);
  if (encodes_whole) scatter.residual = data_of(coding.residual);
  if (sets.replicas != nullptr) {
    pending_replica_sum_ = {shard, scatter};
    AllreduceOptions& sum = pending_replica_sum_->options;
    sum.compression = coding.compression.of_replicas(bucket);
    sum.residual = encodes_whole ? nullptr : data_of(coding.residual);
    sum.name = name + ".replicas";
    sum.process_set = sets.replicas.get();
    sum.op = scatter.op = ReduceOp::Sum;
    sum.prescale = scatter.postscale = 1.0;
    if (options.op == ReduceOp::Average) sum.postscale /= options.process_set->size();
  }
  gradients_ = reduce_scatter_async(buckets.memory(), bucket.offset,
                                    {static_cast<std::int64_t>(bucket.gradient_count())},
                                    view_of(shard, name), scatter);
}

void BucketReduction::advance() {
  if (!pending_replica_sum_ || !gradients_->is_ready()) return;
  try {
    gradients_->wait();  // does not block, but orders streams
  } catch (const Error&) {
    // The other nodes still wait for this rank; wait() throws the error again.
  }
  begin_replica_sum();
}

bool BucketReduction::is_ready() const {
  const auto is_done = [](const std::optional<Handle>& handle) {
    return !handle || handle->is_ready();
  };
  return handle_.is_ready() && is_done(gradients_) && !pending_replica_sum_ &&
         is_done(replica_sum_) && !hook_;
}

void BucketReduction::begin_replica_sum() {
  const TensorView view = view_of(pending_replica_sum_->shard, pending_replica_sum_->options.name);
  replica_sum_ = allreduce_async(view, view, pending_replica_sum_->options);
  pending_replica_sum_.reset();
}

void BucketReduction::wait() {
  // Waits for all operations, even after an error, since their memory and names are reused.
  std::exception_ptr first_error;
  const auto attempt = [&](const auto& work) {
    try {
      work();
    } catch (...) {
      if (!first_error) first_error = std::current_exception();
    }
  };
  attempt([&] { handle_.wait(); });
  if (gradients_) attempt([&] { gradients_->wait(); });
  // Even after an error: other nodes wait for it.
  if (pending_replica_sum_) attempt([&] { begin_replica_sum(); });
  if (replica_sum_) attempt([&] { replica_sum_->wait(); });
  stream_.order_before_current();
  if (first_error) std::rethrow_exception(first_error);
  if (hook_) take_hook_result();
}

void BucketReduction::take_hook_result() {
  const at::Tensor result = hook_->result();
  if (result.is_same(hook_target_)) return;
  if (!result.defined() || result.numel() != hook_target_.numel()) {
    throw InvalidArgument(
        "DistributedOptimizer: a bucket hook returned " +
        (result.defined() ? std::to_string(result.numel()) + " elements" : "no tensor") +
        " for a bucket of " + std::to_string(hook_target_.numel()) +
        ". It must return its reduced gradients, as many as it was given.");
  }
  const at::NoGradGuard no_grad;
  hook_target_.copy_(result.view_as(hook_target_));
}

}  // namespace kolo::tensors
