#pragma once

#include <string>

#include <ATen/core/Tensor.h>

namespace kolo::tensors {

/// Stands in for a dense or sparse tensor that nobody may touch for a while: of its shape, and if
/// it is sparse with as many entries, but without memory. Each access to its elements throws
/// `refusal` as c10::Error.
at::Tensor withheld(const at::Tensor& tensor, const std::string& refusal);

}  // namespace kolo::tensors
