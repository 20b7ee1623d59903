#pragma once

#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kolo/process_set.hpp"

namespace kolo::tensors {

/// Whether kolo::deferred created the tensor, and nothing has moved it since; the same on ranks
/// that keep its elements and on others.
bool is_constructed(const at::Tensor& tensor);

/// Gives each rank the elements of the tensors that kolo::deferred created, with the values of the
/// set's first rank. Collective over the set if there are any.
void fill_deferred(const std::vector<std::pair<std::string, at::Tensor>>& tensors, ProcessSet& set);

}  // namespace kolo::tensors
