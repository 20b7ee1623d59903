#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "kolo/shared_buffer.hpp"

namespace kolo::tensors {

/// The buffer of a whole, contiguous tensor made by shared_empty; null for any other tensor. Lives
/// as long as the tensor's storage.
const SharedBuffer* shared_memory_of(const at::Tensor& tensor);
/// The buffer of a group's only tensor; null for larger groups, which are treated as ordinary ones.
const SharedBuffer* shared_memory_of(const std::vector<at::Tensor>& tensors);

}  // namespace kolo::tensors
