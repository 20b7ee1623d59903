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

/// A parameter at a time: Adasum weighs the ranks' gradients by the angle between them.
Handle begin_adasum(const GradientBuckets& buckets, const Bucket& bucket,
                    const AllreduceOptions& options) {
  std::vector<InputOutput> gradients;
  for (const Bucket::Member& member : bucket.members) {
    if (buckets.is_sparse(member.parameter)) continue;
    const TensorView view{buckets.memory().data() + member.offset, bucket.dtype,
                          buckets.shape_of(member.parameter), buckets.memory().device()};
    gradients.push_back({view, view});
  }
  return grouped_allreduce_async(gradients, options);
}

AllreduceOptions reduction_of(const DistributedOptimizerOptions& options, const std::string& name) {
  AllreduceOptions reduction;
  reduction.op = options.op;
  reduction.prescale = 1.0 / options.gradient_predivide_factor;
  reduction.postscale = options.gradient_predivide_factor;
  reduction.compression = options.compression;
  reduction.join_divisor = options.join_divisor;
  reduction.process_set = options.process_set;
  reduction.name = name;
  return reduction;
}

/// By themselves, whatever becomes of the gradients.
Handle begin_flags(const GradientBuckets& buckets, const Bucket& bucket, const std::string& name,
                   ProcessSet* process_set) {
  AllreduceOptions options;
  options.op = ReduceOp::Sum;
  options.process_set = process_set;
  options.name = name + ".flags";
  const at::Tensor& flags = buckets.flags_of(bucket);
  options.keep_alive = std::make_shared<at::Tensor>(flags);
  const TensorView view = view_of(flags, options.name);
  return allreduce_async(view, view, options);
}

}  // namespace

BucketInFlight::BucketInFlight(const GradientBuckets& buckets, std::size_t index, std::string name,
                               const DistributedOptimizerOptions& options, const BucketHook& hook)
    : stream_(ProgramStream::current(buckets.device())) {
  const Bucket& bucket = buckets.buckets()[index];
  AllreduceOptions all = reduction_of(options, name);
  all.stream = stream_.handle();
  const bool is_plain = !hook && options.op != ReduceOp::Adasum;
  if (is_plain && !buckets.has_flags_apart()) {
    handle_ = allreduce_async(buckets.memory(), bucket.offset, bucket.count(), bucket.dtype, all);
    return;
  }
  handle_ = begin_flags(buckets, bucket, name, options.process_set);
  if (bucket.gradient_count() == 0) return;  // all of them sparse
  if (is_plain) {
    parts_ = allreduce_async(buckets.memory(), bucket.offset, bucket.gradient_count(), bucket.dtype,
                             all);
    return;
  }
  if (!hook) {
    all.keep_alive = buckets.memory().owner();
    parts_ = begin_adasum(buckets, bucket, all);
    return;
  }
  gradients_ = buckets.flat(bucket);
  hooked_ = hook({index, std::move(name), gradients_, buckets.parameters_of(bucket)});
}

BucketInFlight::BucketInFlight(const GradientBuckets& buckets, std::size_t index, std::string name,
                               const DistributedOptimizerOptions& options, const ShardSets& sets,
                               const at::Tensor& part)
    : stream_(sets.replicas == nullptr ? ProgramStream::current(buckets.device())
                                       : ProgramStream::beside_current(buckets.device())) {
  const Bucket& bucket = buckets.buckets()[index];
  handle_ = begin_flags(buckets, bucket, name, options.process_set);
  if (bucket.gradient_count() == 0) return;
  AllreduceOptions scatter = reduction_of(options, name);
  scatter.process_set = sets.divided;
  scatter.stream = stream_.handle();
  scatter.keep_alive = std::make_shared<at::Tensor>(part);
  if (sets.replicas != nullptr) {
    waiting_ = {part, scatter};
    waiting_->options.name = name + ".replicas";
    waiting_->options.process_set = sets.replicas;
    waiting_->options.op = scatter.op = ReduceOp::Sum;
    waiting_->options.prescale = scatter.postscale = 1.0;
    if (options.op == ReduceOp::Average) waiting_->options.postscale /= options.process_set->size();
  }
  parts_ = reduce_scatter_async(buckets.memory(), bucket.offset,
                                {static_cast<std::int64_t>(bucket.gradient_count())},
                                view_of(part, name), scatter);
}

void BucketInFlight::advance() {
  if (!waiting_ || !parts_->is_ready()) return;
  try {
    parts_->wait();  // does not block, but orders streams
  } catch (const Error&) {
    // The other nodes wait for this one all the same, and wait() throws it again.
  }
  begin_replicas();
}

bool BucketInFlight::is_over() const {
  const auto is_ready = [](const std::optional<Handle>& handle) {
    return !handle || handle->is_ready();
  };
  return handle_.is_ready() && is_ready(parts_) && !waiting_ && is_ready(replicas_) && !hooked_;
}

void BucketInFlight::begin_replicas() {
  const TensorView view = view_of(waiting_->part, waiting_->options.name);
  replicas_ = allreduce_async(view, view, waiting_->options);
  waiting_.reset();
}

void BucketInFlight::wait() {
  // All of them, whatever becomes of one: their memory and their names are needed again.
  std::exception_ptr first_error;
  const auto end = [&](Handle& handle) {
    try {
      handle.wait();
    } catch (...) {
      if (!first_error) first_error = std::current_exception();
    }
  };
  end(handle_);
  if (parts_) end(*parts_);
  if (waiting_) begin_replicas();  // the other nodes wait for this one all the same
  if (replicas_) end(*replicas_);
  stream_.come_before_current();
  if (first_error) std::rethrow_exception(first_error);
  if (!hooked_) return;
  const at::Tensor result = hooked_->result();
  if (result.is_same(gradients_)) return;
  if (!result.defined() || result.numel() != gradients_.numel()) {
    throw InvalidArgument(
        "DistributedOptimizer: a bucket hook returned " +
        (result.defined() ? std::to_string(result.numel()) + " elements" : "no tensor") +
        " for a bucket of " + std::to_string(gradients_.numel()) +
        ". It must return its reduced gradients, as many as it was given.");
  }
  const at::NoGradGuard no_grad;
  gradients_.copy_(result.view_as(gradients_));
}

}  // namespace kolo::tensors
