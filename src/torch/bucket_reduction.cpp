#include "torch/bucket_reduction.hpp"

#include <utility>
#include <vector>

#include <c10/core/GradMode.h>

#include "kolo/error.hpp"

namespace kolo::tensors {
namespace {

/// A parameter at a time: Adasum weighs the ranks' gradients by the angle between them.
Handle begin_adasum(const GradientBuckets& buckets, const Bucket& bucket,
                    const AllreduceOptions& options) {
  std::vector<InputOutput> gradients;
  for (const Bucket::Member& member : bucket.members) {
    if (buckets.is_sparse(member.parameter)) continue;
    const TensorView view{buckets.memory().data() + member.offset, bucket.dtype,
                          buckets.shape_of(member.parameter), Device{}};
    gradients.push_back({view, view});
  }
  return grouped_allreduce_async(gradients, options);
}

Handle begin_scatter(const GradientBuckets& buckets, const Bucket& bucket,
                     const ParameterShards::Part& part, AllreduceOptions options) {
  options.keep_alive = part.owner;
  return reduce_scatter_async(buckets.memory(), bucket.offset,
                              {static_cast<std::int64_t>(bucket.gradient_count())},
                              {part.gradients, bucket.dtype, {part.count}, Device{}}, options);
}

}  // namespace

BucketInFlight::BucketInFlight(const GradientBuckets& buckets, std::size_t index, std::string name,
                               const DistributedOptimizerOptions& options, const BucketHook& hook,
                               const ParameterShards::Part* part) {
  const Bucket& bucket = buckets.buckets()[index];
  AllreduceOptions all;
  all.op = options.op;
  all.prescale = 1.0 / options.gradient_predivide_factor;
  all.postscale = options.gradient_predivide_factor;
  all.compression = options.compression;
  all.join_divisor = options.join_divisor;
  all.process_set = options.process_set;
  all.name = name;
  if (part == nullptr && !hook && options.op != ReduceOp::Adasum) {
    handle_ = allreduce_async(buckets.memory(), bucket.offset, bucket.count(), bucket.dtype, all);
    return;
  }
  AllreduceOptions flags;
  flags.op = ReduceOp::Sum;
  flags.process_set = options.process_set;
  flags.name = name + ".flags";
  handle_ = allreduce_async(buckets.memory(), bucket.flags_offset,
                            bucket.count() - bucket.gradient_count(), bucket.dtype, flags);
  if (bucket.gradient_count() == 0) return;  // all of them sparse
  if (part != nullptr) {
    parts_ = begin_scatter(buckets, bucket, *part, all);
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

void BucketInFlight::wait() {
  handle_.wait();
  if (parts_) parts_->wait();
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
