// Sends float32 and float64 as IEEE half precision.
//
// Payload: 2 n bytes; may be summed: rank-ordered algorithms do so in float32 and round once, the
// others round at every step. Error of one cast: at most 2^-11 of a value between 2^-14 and 65504,
// at most 2^-25 absolutely below; values that round beyond 65504 become infinity, which a gradient
// scaler notices. State: none.
#include "compression/cast.hpp"
#include "compression/compressors.hpp"

namespace kolo::compression {

const Compressor& fp16() {
  static const Cast compressor("fp16", DType::Float16);
  return compressor;
}

}  // namespace kolo::compression
