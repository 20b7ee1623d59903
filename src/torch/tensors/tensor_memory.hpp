#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kolo/tensor_view.hpp"

namespace kolo::tensors {

/// Why no collective can move the tensor, for an error text; empty where it can: strided memory of
/// the CPU or of a CUDA device, of a type that Kolo knows.
std::string problem_with(const at::Tensor& tensor);
/// The first problem in a group, naming the tensor.
std::string problem_with(const std::vector<at::Tensor>& tensors);

/// Why nothing can be written to any of the tensors in place; empty where it can.
std::string in_place_problem_with(const std::vector<at::Tensor>& tensors);

/// Kolo's name of the CPU, or of a CUDA device.
Device device_of(const at::Device& device);

/// LibTorch's name of a type.
at::ScalarType scalar_type_of(DType dtype);

/// The tensor's memory. It must be contiguous and stay alive. Throws InvalidArgument, naming
/// `operation`, where the tensor has a problem.
TensorView view_of(const at::Tensor& tensor, std::string_view operation);

}  // namespace kolo::tensors
