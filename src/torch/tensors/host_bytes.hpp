#pragma once

#include <cstddef>
#include <span>

#include <ATen/core/Tensor.h>

namespace kolo::tensors {

/// Copies bytes of a contiguous tensor on any device, from `offset` on, to `place`. Blocks.
void copy_bytes(const at::Tensor& tensor, std::size_t offset, std::span<std::byte> place);

}  // namespace kolo::tensors
