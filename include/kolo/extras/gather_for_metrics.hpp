#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include "kolo/extras/distributed_sampler.hpp"

namespace kolo {

#pragma GCC visibility push(default)
/// Gathers the model's outputs for the batch that the sampler's consume() counted last, as if one
/// rank had processed it: in the order of the epoch, without padding. docs/data.md has an example.
/// Collective over the sampler's process set; blocks.
///
/// Not differentiable. As gather_for_metrics of Hugging Face Accelerate, which leaves the rows in
/// the order of ranks.
/// @param tensor [samples of the batch, ...], on the CPU or a CUDA device; dtype and the other
///   dimensions must be equal on all ranks: pad_across_ranks() makes them so
/// @return [samples of all ranks' batches without padding, ...], on every rank
/// @throws InvalidArgument on all ranks if, on any rank, no batch was consumed or a tensor's rows
///   are not the batch's samples; MismatchError on all ranks if samplers or consumed batches
///   differ; the errors of allgather
at::Tensor gather_for_metrics(const at::Tensor& tensor, const DistributedSampler& sampler);
/// Gathers several tensors at once, such as predictions and labels.
std::vector<at::Tensor> gather_for_metrics(const std::vector<at::Tensor>& tensors,
                                           const DistributedSampler& sampler);

/// Pads a tensor at the ends of all dimensions but the first to the largest size on any rank, so
/// that outputs that differ in length between ranks can be gathered. Collective over the set;
/// blocks. As pad_across_processes of Hugging Face Accelerate, in all dimensions at once.
///
///   tokens = gather_for_metrics(kolo::pad_across_ranks(tokens, kNone), sampler);
///
/// @param tensor [rows, ...] with equally many dimensions on all ranks
/// @param value of the added elements
/// @param process_set null: the world of Runtime::current(); the sampler's or the Accelerator's
/// @throws InvalidArgument on all ranks if a tensor is undefined or a scalar; MismatchError on all
///   ranks if numbers of dimensions differ; the errors of allreduce
at::Tensor pad_across_ranks(const at::Tensor& tensor, const at::Scalar& value = 0,
                            ProcessSet* process_set = nullptr);
#pragma GCC visibility pop

}  // namespace kolo
