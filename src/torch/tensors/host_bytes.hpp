#pragma once

#include <cstddef>
#include <span>

#include <ATen/core/Tensor.h>

namespace kolo::tensors {

/// Copies the bytes of a contiguous tensor from `offset` on to `place`, from whichever device it
/// lies on; waits for that.
void copy_bytes(const at::Tensor& tensor, std::size_t offset, std::span<std::byte> place);

}  // namespace kolo::tensors
