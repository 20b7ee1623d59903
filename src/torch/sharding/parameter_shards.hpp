#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "kolo/handle.hpp"
#include "kolo/process_set.hpp"
#include "kolo/shared_buffer.hpp"
#include "torch/buckets/gradient_buckets.hpp"

namespace kolo::tensors {

/// The parameters of some buckets, of each of which every rank updates an equal part for all ranks.
///
/// Parameters lie at the places that their gradients have in the buckets, in memory of their own
/// that the ranks share where possible. This rank's part of a bucket is a run of bytes; each
/// parameter that reaches into it has *pieces* there, one or, if it is long, several: leaves over
/// the same memory, with the same elements of the gradient. A wrapped optimizer steps pieces as it
/// would step parameters. Pieces, not one leaf a bucket: a parameter without a gradient must be
/// left alone, its state too.
class ParameterShards {
 public:
  struct Piece {
    std::size_t parameter;  ///< its index
    std::size_t member;     ///< its place among the bucket's members
    std::int64_t begin;     ///< its first element among those of the parameter
    at::Tensor values;      ///< [n], a leaf over the parameter's memory
    at::Tensor gradient;    ///< [n], the reduced one
  };

  /// Moves the parameters' elements; parameters stay the tensors that they are, and so do views of
  /// them. Reduced gradients lie in the buckets, or where those are recycled, in memory of their
  /// own, which gets what is in the buckets now. Collective over the set of `options`, whose name
  /// names the parameters' memory.
  ParameterShards(const std::vector<at::Tensor>& parameters, const GradientBuckets& buckets,
                  bool recycles, const OperationOptions& options);

  const std::vector<Piece>& pieces(std::size_t bucket) const { return pieces_[bucket]; }
  /// This rank's part [n] of a bucket's gradients.
  const at::Tensor& part(std::size_t bucket) const { return parts_[bucket]; }

  /// The state that an optimizer has of whole parameters becomes that of the pieces. Throws
  /// InvalidArgument for state that cannot be read.
  void cut(torch::optim::Optimizer& optimizer) const;
  /// Takes the state of the pieces from an optimizer: their addresses will be those of others.
  void erase_state(torch::optim::Optimizer& optimizer) const;

  /// Gives the gradients of a bucket's pieces to them, where any rank has one; where it is not the
  /// first time in a step, they keep what they have. Or takes them away again.
  void hand_out(std::size_t bucket, const GradientBuckets& buckets, bool is_first) const;
  void drop_gradients(std::size_t bucket) const;
  /// Adds those that there are to `gradients`.
  void list_gradients(std::vector<at::Tensor>& gradients) const;

  /// Begins to give the bucket's pieces on each rank to all others.
  Handle gather(std::size_t bucket, std::string name, const OperationOptions& options) const;

 private:
  std::vector<at::Tensor> parameters_;
  std::vector<Bucket> layout_;
  SharedBuffer memory_;
  std::vector<at::Tensor> parts_;           // of each bucket
  std::vector<std::vector<Piece>> pieces_;  // of each bucket
};

}  // namespace kolo::tensors
