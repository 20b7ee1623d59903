#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kolo/handle.hpp"
#include "kolo/process_set.hpp"
#include "kolo/shared_buffer.hpp"
#include "torch/buckets/gradient_buckets.hpp"
#include "torch/wrapped/wrapped_optimizer.hpp"

namespace kolo::tensors {

/// The parameters of some buckets, sharded: each rank updates one equal shard of every bucket.
///
/// Parameters have the layout of their gradients in the buckets, in memory that the ranks share
/// where possible. A shard is a range of a bucket. Each parameter that overlaps it has leaves
/// there, several if it is long: autograd leaves over the parameter's memory, which the wrapped
/// optimizer steps like parameters. One leaf for a whole shard would not do: a parameter without a
/// gradient must not be stepped, nor its state.
class ParameterShards {
 public:
  struct Leaf {
    std::size_t parameter;  ///< its index
    std::size_t member;     ///< its place among the bucket's members
    std::int64_t begin;     ///< its first element in the parameter
    at::Tensor values;      ///< [n], over the parameter's memory
    at::Tensor gradient;    ///< [n], reduced
  };

  /// Moves the parameters' elements; the tensors and views of them stay valid. Reduced gradients
  /// lie in the buckets or, with `shares_slots`, in memory of their own, into which the shards are
  /// copied now. Collective over the set of `options`, whose name is that of the parameters'
  /// memory.
  ParameterShards(const GradientBuckets& buckets, bool shares_slots,
                  const OperationOptions& options);

  const std::vector<Leaf>& leaves(std::size_t bucket) const { return leaves_[bucket]; }
  /// This rank's shard [n] of a bucket's gradients.
  const at::Tensor& gradient_shard(std::size_t bucket) const { return gradients_[bucket]; }

  /// Replaces the state of parameters by state of their leaves. Throws InvalidArgument for state
  /// that cannot be read.
  void shard_state(WrappedOptimizer& optimizer) const;
  /// Erases the state of all leaves, whose addresses other tensors may get later.
  void erase_state(WrappedOptimizer& optimizer) const;

  /// Assigns the reduced gradients of a bucket to its leaves. A leaf without a gradient on any rank
  /// keeps that of an earlier pass if `adds_up`, otherwise none.
  void assign_gradients(std::size_t bucket, const GradientBuckets& buckets, bool adds_up) const;
  void clear_gradients(std::size_t bucket) const;
  void append_gradients(std::vector<at::Tensor>& gradients) const;

  /// Starts to all-gather the bucket's updated leaves.
  Handle gather(std::size_t bucket, const OperationOptions& options) const;

 private:
  std::vector<Leaf> make_leaves(const Bucket& bucket, std::size_t begin,
                                const at::Tensor& gradients) const;

  std::vector<at::Tensor> parameters_;
  std::vector<Bucket> layout_;
  SharedBuffer memory_;
  std::vector<at::Tensor> gradients_;      // this rank's shard of each bucket
  std::vector<std::vector<Leaf>> leaves_;  // of each bucket
};

}  // namespace kolo::tensors
