#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kolo/tensor_view.hpp"

namespace kolo::tensors {

/// Why collectives cannot take the tensor, for an error text; empty if they can: it must be
/// strided, on the CPU or a CUDA device, of a dtype that Kolo knows.
std::string problem_with(const at::Tensor& tensor);
/// The first problem in a group, with the tensor's index.
std::string problem_with(const std::vector<at::Tensor>& tensors);

/// The same for tensors that are written to in place.
std::string in_place_problem_with(const std::vector<at::Tensor>& tensors);

Device device_of(const at::Device& device);

at::ScalarType scalar_type_of(DType dtype);

/// The memory of a contiguous tensor, which must stay alive. Throws InvalidArgument, naming
/// `operation`, if the tensor has a problem.
TensorView view_of(const at::Tensor& tensor, std::string_view operation);

}  // namespace kolo::tensors
