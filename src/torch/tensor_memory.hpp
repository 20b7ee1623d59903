#pragma once

#include <string_view>

#include <ATen/core/Tensor.h>

#include "kolo/tensor_view.hpp"

namespace kolo::tensors {

/// Kolo's type for a tensor's elements. Throws InvalidArgument, naming `operation`, for types that
/// no collective moves.
DType dtype_of(const at::Tensor& tensor, std::string_view operation);

/// The tensor's memory. It must be contiguous, on the CPU, and stay alive. Throws InvalidArgument,
/// naming `operation`, for what is not strided CPU memory of a type that Kolo moves.
TensorView view_of(const at::Tensor& tensor, std::string_view operation);

}  // namespace kolo::tensors
