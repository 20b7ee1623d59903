#pragma once

#include <string>

#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>

/// Temporarily prevents access to the elements of storages. They keep their size, so that views can
/// be created.
namespace kolo::tensors {

/// Sets the text of the c10::Error that each access throws while the storage has no elements or
/// access is refused.
void set_refusal(const c10::Storage& storage, const std::string& text);

/// Refuses, or allows again, access to the elements through the storage, its tensors and their
/// views.
void refuse_access(const c10::Storage& storage);
void allow_access(const c10::Storage& storage);

/// Removes the storage's elements. `kind` becomes its deleter, which identifies it.
void take_elements(const c10::Storage& storage, c10::DeleterFnPtr kind);

/// Sets the elements of the storage, its tensors and their views.
void set_elements(const c10::Storage& storage, at::DataPtr elements);

/// Whether the storage's deleter is `kind`, even if it has no elements.
bool has_deleter(const c10::Storage& storage, c10::DeleterFnPtr kind);

}  // namespace kolo::tensors
