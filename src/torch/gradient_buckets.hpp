#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kolo/shared_buffer.hpp"
#include "torch/bucket_plan.hpp"

namespace kolo::tensors {

/// The memory of a plan's buckets, and the parameters' gradients as views of it.
///
/// Autograd takes any new gradient as it comes, without a copy; `adopt` moves it into its place.
/// From then on backward() adds into that place, until the gradient is dropped again.
class GradientBuckets {
 public:
  /// `name` names the memory among all ranks. Collective over the set of `options`.
  GradientBuckets(const std::vector<at::Tensor>& parameters, BucketPlan plan,
                  const OperationOptions& options);

  const std::vector<Bucket>& buckets() const { return plan_.buckets; }
  const SharedBuffer& memory() const { return memory_; }

  /// Makes the parameter's gradient the view of its place, with the values it has.
  void adopt(std::size_t parameter);
  /// Fills in what a bucket says of gradients that this rank does not have, and which it has.
  void complete(const Bucket& bucket);
  /// After the reduction: every parameter that has a gradient on any rank gets it.
  void hand_out(const Bucket& bucket);

 private:
  std::vector<at::Tensor> parameters_;
  BucketPlan plan_;
  SharedBuffer memory_;
  std::vector<at::Tensor> views_;  // of each parameter's place
  std::vector<at::Tensor> flags_;  // of each bucket: one element a member
};

}  // namespace kolo::tensors
