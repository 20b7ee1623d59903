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

/// Gives deferred tensors memory, without values. Those that shared a storage share one again.
void allocate_deferred(const std::vector<at::Tensor>& tensors);

/// Makes `elements` those of the tensor. Views of it have them too, unless it was deferred.
void set_elements(const at::Tensor& tensor, at::DataPtr elements);

}  // namespace kolo::tensors
