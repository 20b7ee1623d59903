#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kolo/dtype.hpp"
#include "kolo/torch/checkpoint.hpp"

namespace kolo::train {

/// Whether a loose load takes a tensor of this shape and dtype from a file: it may convert between
/// floating-point types, and between complex ones.
bool can_take(const at::Tensor& own, DType dtype, const std::vector<std::int64_t>& shape);

/// Throws InvalidArgument if nothing was found for any of the model's parameters and buffers.
void require_some(const Loaded& found, const std::string& what);

/// Logs what a load has converted and left out.
void log_partial(const Loaded& loaded);

// Elements of an expanded tensor share memory.

/// Throws InvalidArgument if `values`, for the tensor `name`, differ where its elements share
/// memory.
void require_alike_where_shared(const std::string& name, const at::Tensor& own,
                                const at::Tensor& values);
/// Copies values to a tensor, which may be expanded.
void copy_values(const at::Tensor& own, const at::Tensor& values);

}  // namespace kolo::train
