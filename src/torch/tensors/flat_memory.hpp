#pragma once

#include <cstddef>
#include <cstdint>

#include <ATen/core/Tensor.h>

#include "kolo/shared_buffer.hpp"

namespace kolo::tensors {

/// Allocates zeroed memory on `device` for tensors that collectives work on in place: on the CPU
/// the ranks share it where possible, on a GPU it is this rank's own. Collective on the CPU;
/// `options` must have a name.
SharedBuffer make_flat_memory(std::size_t size_bytes, const at::Device& device,
                              const OperationOptions& options);

/// A tensor of `shape` and `type` at `offset_bytes` of the memory, which it keeps alive. Not a view
/// for autograd: zero_grad detaches gradients in place, which views refuse.
at::Tensor tensor_over(const SharedBuffer& memory, std::size_t offset_bytes, at::IntArrayRef shape,
                       const at::TensorOptions& type);

/// How many copies of a tensor's elements ranks that share memory keep.
enum class Copies : std::uint8_t { PerRank, PerNode };

/// Makes the memory at `offset_bytes` the tensor's storage, which keeps it alive. The tensor, and
/// views of it, then have the elements that lie there.
void rebind_storage(const at::Tensor& tensor, const SharedBuffer& memory, std::size_t offset_bytes,
                    Copies copies);

/// Gives the tensor memory of its own, with the same elements.
void make_own_copy(const at::Tensor& tensor);

/// Whether rebind_storage() has given the tensor memory of which ranks share one copy.
bool has_one_copy(const at::Tensor& tensor);

}  // namespace kolo::tensors
