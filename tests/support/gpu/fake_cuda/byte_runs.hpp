#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "support/gpu/happens_before.hpp"

namespace kolo::test {

/// The bytes that the elements of `tensor` lie in, and no others.
std::vector<ByteRange> byte_runs(const at::Tensor& tensor);

}  // namespace kolo::test
