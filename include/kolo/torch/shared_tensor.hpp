#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include "kolo/collectives.hpp"

#pragma GCC visibility push(default)
/// Tensors in memory that all ranks of a node share; see kolo/shared_buffer.hpp.
///
/// The collectives of kolo/torch/tensor_collectives.hpp detect such tensors and move their elements
/// between ranks without intermediate copies: allreduce_, broadcast_, and the input of
/// reduce_scatter and alltoall. This requires the whole tensor, contiguous and not in a group. It
/// must be the same tensor on all ranks, or all get MismatchError. Views of a part of it, whose
/// offset may differ between ranks, and all other operations are treated like ordinary tensors.
namespace kolo {

/// Creates a CPU tensor of zeros on every rank, in memory that the ranks share. Collective over the
/// set of `operation` and blocking. If ranks cannot share memory, it is private: slower, but with
/// the same results. The memory is freed with the last tensor that uses it.
/// @param sizes the same on all ranks
/// @param options requires_grad, and a dtype that collectives support, the same on all ranks
/// @throws the errors of collectives
at::Tensor shared_empty(at::IntArrayRef sizes, const at::TensorOptions& options = {},
                        const OperationOptions& operation = {});

/// Whether other ranks can access this tensor's elements, so that collectives need no copies: true
/// for a whole tensor made by shared_empty on ranks that share memory.
bool is_shared(const at::Tensor& tensor);

}  // namespace kolo
#pragma GCC visibility pop
