#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "kolo/torch/distributed_sampler.hpp"

#pragma GCC visibility push(default)
namespace kolo {

/// Gathers the model's outputs for the batch that the sampler's consume() counted last, as if one
/// rank had processed it: in the order of the epoch, without padding. Nine samples on two ranks in
/// batches of five give nine rows. Collective over the sampler's process set; blocks.
///
///   for (auto& batch : *loader) {
///     sampler.consume();
///     const at::Tensor right = model->forward(batch.data).argmax(1).eq(batch.target);
///     correct += kolo::gather_for_metrics(right, sampler).sum().item<std::int64_t>();
///   }
///
/// Not differentiable. As gather_for_metrics of Hugging Face Accelerate, which leaves the rows in
/// the order of ranks.
/// @param tensor [samples of the batch, ...], on the CPU or a CUDA device; dtype and the other
///   dimensions must be equal on all ranks
/// @return [samples of all ranks' batches without padding, ...], on every rank
/// @throws InvalidArgument on all ranks if, on any rank, no batch was consumed or a tensor's rows
///   are not the batch's samples; MismatchError on all ranks if samplers or consumed batches
///   differ; the errors of allgather
at::Tensor gather_for_metrics(const at::Tensor& tensor, const DistributedSampler& sampler);
/// The same for several tensors at once, such as predictions and labels.
std::vector<at::Tensor> gather_for_metrics(const std::vector<at::Tensor>& tensors,
                                           const DistributedSampler& sampler);

}  // namespace kolo
#pragma GCC visibility pop
