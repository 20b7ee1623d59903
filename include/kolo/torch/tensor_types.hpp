#pragma once

#include <optional>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "kolo/dtype.hpp"
#include "kolo/tensor_view.hpp"

#pragma GCC visibility push(default)
namespace kolo {

/// LibTorch's types as Kolo's, for programs that make a TensorView of a tensor.

at::ScalarType scalar_type_of(DType dtype);
/// Nothing for a dtype that Kolo does not have.
std::optional<DType> dtype_of(at::ScalarType type);
/// @param device the CPU or a CUDA device
Device device_of(const at::Device& device);

}  // namespace kolo
#pragma GCC visibility pop
