#pragma once

#include <cstdint>

#include "base/convert.hpp"
#include "comm/gpu/gpu.hpp"

namespace kolo::test {

/// `value` as an element of `dtype`, for Gpu::fill().
inline comm::Scalar scalar_of(DType dtype, double value) {
  alignas(8) comm::Scalar bytes{};
  const auto integer = static_cast<std::int64_t>(value);
  if (is_floating(dtype)) {
    base::convert(DType::Float64, &value, dtype, bytes.data(), 1);
  } else {
    const DType to = dtype == DType::Bool ? DType::UInt8 : dtype;
    base::convert(DType::Int64, &integer, to, bytes.data(), 1);
  }
  return bytes;
}

}  // namespace kolo::test
