#include "torch/gradient_buckets.hpp"

#include <utility>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

namespace kolo::tensors {
namespace {

/// A tensor over shared memory, which it keeps alive. Not a view in autograd's sense: zero_grad
/// detaches gradients in place, and views refuse that.
at::Tensor tensor_over(const SharedBuffer& memory, std::size_t offset, at::IntArrayRef shape,
                       const at::TensorOptions& options) {
  return at::from_blob(
      memory.data() + offset, shape, [owner = memory.owner()](void*) {}, options);
}

}  // namespace

GradientBuckets::GradientBuckets(const std::vector<at::Tensor>& parameters, BucketPlan plan,
                                 const OperationOptions& options)
    : parameters_(parameters),
      plan_(std::move(plan)),
      memory_(plan_.size_bytes, options),
      views_(parameters.size()) {
  for (const Bucket& bucket : plan_.buckets) {
    const at::TensorOptions type = parameters_[bucket.members.front().parameter].options();
    for (const Bucket::Member& member : bucket.members) {
      views_[member.parameter] = tensor_over(
          memory_, member.offset, parameters_[member.parameter].sizes(), type.requires_grad(false));
    }
    flags_.push_back(tensor_over(memory_, bucket.flags_offset,
                                 {static_cast<std::int64_t>(bucket.members.size())},
                                 type.requires_grad(false)));
  }
}

void GradientBuckets::adopt(std::size_t parameter) {
  at::Tensor& gradient = parameters_[parameter].mutable_grad();
  const at::Tensor& view = views_[parameter];
  if (gradient.is_same(view)) return;
  const at::NoGradGuard no_grad;
  view.copy_(gradient);
  gradient = view;
}

void GradientBuckets::complete(const Bucket& bucket) {
  const at::NoGradGuard no_grad;
  at::Tensor& flags = flags_[static_cast<std::size_t>(&bucket - plan_.buckets.data())];
  flags.fill_(1);
  for (std::size_t i = 0; i < bucket.members.size(); ++i) {
    const std::size_t parameter = bucket.members[i].parameter;
    if (parameters_[parameter].grad().defined()) {
      adopt(parameter);  // one that the user put there
    } else {
      views_[parameter].zero_();
      flags[static_cast<std::int64_t>(i)] = 0;
    }
  }
}

void GradientBuckets::hand_out(const Bucket& bucket) {
  const at::NoGradGuard no_grad;
  const at::Tensor& flags = flags_[static_cast<std::size_t>(&bucket - plan_.buckets.data())];
  for (std::size_t i = 0; i < bucket.members.size(); ++i) {
    const std::size_t parameter = bucket.members[i].parameter;
    at::Tensor& gradient = parameters_[parameter].mutable_grad();
    if (gradient.defined() || flags[static_cast<std::int64_t>(i)].item<double>() == 0.0) continue;
    gradient = views_[parameter];
  }
}

}  // namespace kolo::tensors
