#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "kolo/shared_buffer.hpp"

namespace kolo::tensors {

/// The buffer of which a tensor that shared_empty made holds all elements in their order; null for
/// any other tensor. It lives as long as the tensor's storage.
const SharedBuffer* shared_memory_of(const at::Tensor& tensor);
/// That of a group's only tensor: groups of several take the ordinary way.
const SharedBuffer* shared_memory_of(const std::vector<at::Tensor>& tensors);

}  // namespace kolo::tensors
