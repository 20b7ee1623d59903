#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace kolo::tensors {

/// Frees the elements of a parameter until it is wrapped. Until then, every access to them throws,
/// naming `name`.
void defer_storage(const at::Tensor& tensor, const std::string& name);

/// Whether the tensor's elements were freed and not restored.
bool is_deferred(const at::Tensor& tensor);

/// Allocates uninitialized memory for deferred tensors.
void allocate_deferred(const std::vector<at::Tensor>& tensors);

}  // namespace kolo::tensors
