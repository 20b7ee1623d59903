#pragma once

#include <cstddef>

#include <ATen/core/Tensor.h>

#include "kolo/shared_buffer.hpp"

namespace kolo::tensors {

/// Memory of `device` that tensors lie in and ranks reduce as it is: on the CPU shared by them
/// where possible, on a GPU this rank's own. Zero at first. Collective on the CPU; `options` has a
/// name.
SharedBuffer make_flat_memory(std::size_t size_bytes, const at::Device& device,
                              const OperationOptions& options);

/// A tensor of `shape` and `type` over the memory from `offset_bytes` on, which it keeps alive. Not
/// a view in autograd's sense: zero_grad detaches gradients in place, and views refuse that.
at::Tensor tensor_over(const SharedBuffer& memory, std::size_t offset_bytes, at::IntArrayRef shape,
                       const at::TensorOptions& type);

}  // namespace kolo::tensors
