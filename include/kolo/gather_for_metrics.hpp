#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "kolo/distributed_sampler.hpp"

#pragma GCC visibility push(default)
namespace kolo {

/// Gathers what the model made of the batch that the sampler's consume() has counted last, as if
/// one rank had seen it: in the order of the data set's epoch, without padding. Nine samples on two
/// ranks in batches of five are nine rows. Collective over the sampler's process set; blocks.
///
///   for (auto& batch : *loader) {
///     sampler.consume();
///     const at::Tensor right = model->forward(batch.data).argmax(1).eq(batch.target);
///     correct += kolo::gather_for_metrics(right, sampler).sum().item<std::int64_t>();
///   }
///
/// Autograd does not see it. As gather_for_metrics of Hugging Face Accelerate, which leaves the
/// rows in the order of ranks.
/// @param tensor [samples of the batch, ...], on the CPU or a CUDA device; dtype and the other
///   dimensions as on all ranks
/// @return [samples of all ranks' batches without padding, ...], on every rank
/// @throws InvalidArgument on all ranks if on any of them no batch was consumed, or a tensor has
///   other rows than it; MismatchError on all if their samplers differ, or have consumed different
///   batches; the errors of allgather
at::Tensor gather_for_metrics(const at::Tensor& tensor, const DistributedSampler& sampler);
/// The same for several tensors at once: predictions and labels, say.
std::vector<at::Tensor> gather_for_metrics(const std::vector<at::Tensor>& tensors,
                                           const DistributedSampler& sampler);

}  // namespace kolo
#pragma GCC visibility pop
