#pragma once

#include <string>

#include <ATen/core/Tensor.h>

namespace kolo::tensors {

/// A stand-in for a dense or sparse tensor to which access is refused for a while. It has the same
/// shape and, if sparse, as many entries, but no memory. Each access to its elements throws
/// `refusal` as c10::Error.
at::Tensor withheld(const at::Tensor& tensor, const std::string& refusal);

}  // namespace kolo::tensors
