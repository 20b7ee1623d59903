#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "support/gpu/happens_before.hpp"

namespace kolo::test {

/// The exact byte ranges of the elements of `tensor`.
std::vector<ByteRange> byte_runs(const at::Tensor& tensor);

}  // namespace kolo::test
