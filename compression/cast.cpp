#include "compression/cast.hpp"

#include "base/convert.hpp"
#include "compression/compressors.hpp"

namespace kolo::compression {

DType Cast::wire_dtype(DType dtype) const {
  return dtype == DType::Float32 || dtype == DType::Float64 ? half_ : dtype;
}

void Cast::compress(DType dtype, const void* tensor, std::size_t count, void* payload) const {
  const DType wire = wire_dtype(dtype);
  if (wire == dtype) return none().compress(dtype, tensor, count, payload);
  base::convert(dtype, tensor, wire, payload, count);
}

void Cast::decompress(DType dtype, const void* payload, std::size_t count, void* tensor) const {
  const DType wire = wire_dtype(dtype);
  if (wire == dtype) return none().decompress(dtype, payload, count, tensor);
  base::convert(wire, payload, dtype, tensor, count);
}

}  // namespace kolo::compression
