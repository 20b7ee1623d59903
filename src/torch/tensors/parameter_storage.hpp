#pragma once

#include <cstddef>
#include <cstdint>

#include <ATen/core/Tensor.h>

#include "kolo/shared_buffer.hpp"

namespace kolo::tensors {

/// How many copies of a tensor's elements ranks that share memory keep.
enum class Copies : std::uint8_t { PerRank, PerNode };

/// Whether the tensor is all of its storage, in order: otherwise its elements cannot be moved.
bool has_own_storage(const at::Tensor& tensor);

/// Makes the memory at `offset_bytes` the tensor's storage, which keeps it alive. The tensor, and
/// views of it, then have the elements that lie there.
void rebind_storage(const at::Tensor& tensor, const SharedBuffer& memory, std::size_t offset_bytes,
                    Copies copies);

/// Gives the tensor memory of its own, with the same elements.
void make_own_copy(const at::Tensor& tensor);

/// Whether rebind_storage() has given the tensor memory of which ranks share one copy.
bool has_one_copy(const at::Tensor& tensor);

}  // namespace kolo::tensors
