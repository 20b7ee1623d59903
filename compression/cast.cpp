#include "compression/cast.hpp"

#include "base/convert.hpp"
#include "compression/registry.hpp"

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

// Sends float32 and float64 as IEEE half precision.
//
// Payload: 2 n bytes; may be summed: rank-ordered algorithms do so in float32 and round once, the
// others round at every step. Error of one cast: at most 2^-11 of a value between 2^-14 and 65504,
// at most 2^-25 absolutely below; values that round beyond 65504 become infinity, which a gradient
// scaler notices. State: none.

const Compressor& fp16() {
  static const Cast compressor("fp16", DType::Float16);
  return compressor;
}

// Sends float32 and float64 as bfloat16, the upper half of a float32.
//
// Payload: 2 n bytes; may be summed: rank-ordered algorithms do so in float32 and round once, the
// others round at every step. Error of one cast: at most 2^-8 of a value, over the whole range of
// normal float32. State: none.

const Compressor& bf16() {
  static const Cast compressor("bf16", DType::BFloat16);
  return compressor;
}

}  // namespace kolo::compression
