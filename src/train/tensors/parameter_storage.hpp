#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>

#include "kolo/shared_buffer.hpp"

namespace kolo::train {

/// Temporarily prevents access to the elements of storages. They keep their size, so that views can
/// be created.

/// Sets the text of the c10::Error that each access throws while the storage has no elements or
/// access is refused.
void set_refusal(const c10::Storage& storage, const std::string& text);

/// What is refused for a while. LibTorch throws a text of its own where a write is refused and a
/// read is not.
enum class Refused : std::uint8_t { Nothing, Writes, Access };

/// Refuses, or allows again, access to the elements through the storage, its tensors and their
/// views.
void refuse(const c10::Storage& storage, Refused refused);

/// Removes the storage's elements. `kind` becomes its deleter, which identifies it.
void take_elements(const c10::Storage& storage, c10::DeleterFnPtr kind);

/// Sets the elements of the storage, its tensors and their views.
void set_elements(const c10::Storage& storage, at::DataPtr elements);

/// Whether the storage's deleter is `kind`, even if it has no elements.
bool has_deleter(const c10::Storage& storage, c10::DeleterFnPtr kind);

/// A stand-in for a dense or sparse tensor to which access is refused for a while. It has the same
/// shape and, if sparse, as many entries, but no memory. Each access to its elements throws
/// `refusal` as c10::Error.
at::Tensor make_stand_in(const at::Tensor& tensor, const std::string& refusal);

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
/// Leaves the storage without elements: each access throws the text of set_refusal().
void unbind_storage(const c10::Storage& storage);
/// Whether the tensor's storage is of this kind.
bool is_gathered_on_use(const at::Tensor& tensor);

/// Whether the tensor is a parameter of Shard::Full: ranks have no copies of their own.
inline bool is_fully_sharded(const at::Tensor& tensor) {
  return has_one_copy(tensor) || is_gathered_on_use(tensor);
}

}  // namespace kolo::train
