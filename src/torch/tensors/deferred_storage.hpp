#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace kolo::tensors {

/// Frees the elements of a parameter, which gets them back when it is wrapped. Until then every
/// access to them throws, naming `name`.
void defer_storage(const at::Tensor& tensor, const std::string& name);

/// Whether the tensor's elements were freed and have not come back.
bool is_deferred(const at::Tensor& tensor);

/// Gives deferred tensors memory, without values.
void allocate_deferred(const std::vector<at::Tensor>& tensors);

}  // namespace kolo::tensors
