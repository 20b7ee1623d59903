#pragma once

#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kolo/process_set.hpp"

namespace kolo::tensors {

/// Whether kolo::deferred has made the tensor, and nothing has moved it since; the same on the
/// ranks that keep its elements and on others.
bool is_constructed(const at::Tensor& tensor);

/// Gives each rank the elements of those tensors that kolo::deferred has made; values are those of
/// the set's first rank. Collective over the set if there are any.
void fill_deferred(const std::vector<std::pair<std::string, at::Tensor>>& tensors, ProcessSet& set);

}  // namespace kolo::tensors
