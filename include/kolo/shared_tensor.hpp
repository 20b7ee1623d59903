#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include "kolo/collectives.hpp"

/// Tensors in memory that all ranks of a node reach: see kolo/shared_buffer.hpp.
///
/// Collectives of kolo/tensor_collectives.hpp find out by themselves that they are given such a
/// tensor, whole and contiguous, alone and not in a group, and move its elements between the ranks
/// without any copy in between: allreduce_ and broadcast_, reduce_scatter and alltoall (of their
/// input). Then it must be the same tensor on all ranks, or all of them get MismatchError. Views of
/// a part of it, whose place may differ between ranks, and all other operations take the ordinary
/// way.
namespace kolo {

/// A CPU tensor of zeros of this shape, one on every rank, of a type that collectives know; with
/// `requires_grad` where `options` say so. Its memory is given back with the last tensor that uses
/// it. Collective over the set of `operation` and blocking; the ranks must give the same shape and
/// type. Where ranks cannot share memory it is private, and slower, but otherwise the same. Errors
/// are those of collectives.
at::Tensor shared_empty(at::IntArrayRef sizes, const at::TensorOptions& options = {},
                        const OperationOptions& operation = {});

/// Whether other ranks reach the elements of this tensor, so that collectives need no copies: it is
/// what shared_empty made, as a whole, on ranks that share memory.
bool is_shared(const at::Tensor& tensor);

}  // namespace kolo
