#include "comm/gpu/gpu.hpp"

#include <cstdint>

#include "base/convert.hpp"
#include "base/scale_integer.hpp"

namespace kolo::comm {

Scalar scalar_of(DType dtype, double value) {
  alignas(8) Scalar bytes{};
  if (dtype == DType::Bool) {
    bytes[0] = value != 0 ? std::byte{1} : std::byte{0};
  } else if (is_floating(dtype)) {
    base::convert(DType::Float64, &value, dtype, bytes.data(), 1);
  } else {
    const std::int64_t integer = base::scale_integer<std::int64_t>(1, value);
    base::convert(DType::Int64, &integer, dtype, bytes.data(), 1);
  }
  return bytes;
}

}  // namespace kolo::comm
