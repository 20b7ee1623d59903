#pragma once

#include <cstddef>
#include <cstdint>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include "kolo/shared_buffer.hpp"

namespace kolo::tensors {

/// Copies of a tensor's elements among ranks that share memory.
enum class Copies : std::uint8_t { PerRank, PerNode };

/// Whether the tensor covers its whole storage, in order: otherwise its elements cannot be moved.
bool has_own_storage(const at::Tensor& tensor);

/// Makes the memory at `offset_bytes` the tensor's storage, which keeps it alive. The tensor and
/// its views then have the elements in that memory.
void rebind_storage(const at::Tensor& tensor, const SharedBuffer& memory, std::size_t offset_bytes,
                    Copies copies);

/// Gives the tensor its own memory, with the same elements.
void make_own_copy(const at::Tensor& tensor);

/// Whether rebind_storage() has bound the tensor to memory with Copies::PerNode.
bool has_one_copy(const at::Tensor& tensor);

// Storages of parameters that are gathered on use.

/// Binds the storage to `memory`, which it does not own, until unbind_storage().
void bind_storage(const c10::Storage& storage, void* memory);
/// Leaves the storage without elements, see storage_access.hpp.
void unbind_storage(const c10::Storage& storage);
/// Whether the tensor's storage is of this kind.
bool is_gathered_on_use(const at::Tensor& tensor);

/// Whether the tensor is a parameter of Shard::Full: ranks have no copies of their own.
inline bool is_fully_sharded(const at::Tensor& tensor) {
  return has_one_copy(tensor) || is_gathered_on_use(tensor);
}

}  // namespace kolo::tensors
