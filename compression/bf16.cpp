// Sends float32 and float64 as bfloat16, the upper half of a float32.
//
// Payload: 2 n bytes; may be summed: rank-ordered algorithms do so in float32 and round once, the
// others round at every step. Error of one cast: at most 2^-8 of a value, over the whole range of
// normal float32. State: none.
#include "compression/cast.hpp"
#include "compression/compressors.hpp"

namespace kolo::compression {

const Compressor& bf16() {
  static const Cast compressor("bf16", DType::BFloat16);
  return compressor;
}

}  // namespace kolo::compression
