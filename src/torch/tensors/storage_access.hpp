#pragma once

#include <string>

#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>

/// Storages whose elements nobody may touch for a while. They keep their size, so that views can be
/// made.
namespace kolo::tensors {

/// What each access to the storage throws, as c10::Error, while it has no elements or is refused.
void set_refusal(const c10::Storage& storage, const std::string& text);

/// From now on each access to the elements through the storage, of its tensors and of views of
/// them, is refused; or allowed again.
void refuse_access(const c10::Storage& storage);
void allow_access(const c10::Storage& storage);

/// Takes the storage's elements away. `kind` becomes its deleter, by which it is recognized.
void take_elements(const c10::Storage& storage, c10::DeleterFnPtr kind);

/// Makes `elements` those of the storage, of its tensors and of views of them.
void set_elements(const c10::Storage& storage, at::DataPtr elements);

/// Whether the storage's deleter is `kind`, even if it has no elements.
bool has_deleter(const c10::Storage& storage, c10::DeleterFnPtr kind);

}  // namespace kolo::tensors
