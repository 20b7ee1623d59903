// The compressors: none changes nothing, fp16 and bf16 send float32 and float64 as a 16-bit type.
//
// Payload of fp16 and bf16: 2 n bytes; may be summed: rank-ordered algorithms do so in float32 and
// round once, the others round at every step. State: none.
#include <cstring>
#include <string_view>

#include "base/convert.hpp"
#include "compression/registry.hpp"

namespace kolo::compression {
namespace {

class None final : public Compressor {
 public:
  std::string_view name() const override { return "none"; }
  DType wire_dtype(DType dtype) const override { return dtype; }
  void compress(DType dtype, const void* tensor, std::size_t count, void* payload) const override {
    if (count > 0) std::memcpy(payload, tensor, count * size_of(dtype));
  }
  void decompress(DType dtype, const void* payload, std::size_t count,
                  void* tensor) const override {
    if (count > 0) std::memcpy(tensor, payload, count * size_of(dtype));
  }
};

/// Leaves tensors of other types than float32 and float64 unchanged.
class Cast final : public Compressor {
 public:
  Cast(std::string_view name, DType half) : name_(name), half_(half) {}

  std::string_view name() const override { return name_; }
  DType wire_dtype(DType dtype) const override {
    return dtype == DType::Float32 || dtype == DType::Float64 ? half_ : dtype;
  }
  void compress(DType dtype, const void* tensor, std::size_t count, void* payload) const override {
    const DType wire = wire_dtype(dtype);
    if (wire == dtype) return none().compress(dtype, tensor, count, payload);
    base::convert(dtype, tensor, wire, payload, count);
  }
  void decompress(DType dtype, const void* payload, std::size_t count,
                  void* tensor) const override {
    const DType wire = wire_dtype(dtype);
    if (wire == dtype) return none().decompress(dtype, payload, count, tensor);
    base::convert(wire, payload, dtype, tensor, count);
  }

 private:
  std::string_view name_;
  DType half_;
};

}  // namespace

const Compressor& none() {
  static const None compressor;
  return compressor;
}

/// IEEE half precision. Error of one cast: at most 2^-11 of a value between 2^-14 and 65504, at
/// most 2^-25 absolutely below; values that round beyond 65504 become infinity, which a gradient
/// scaler notices.
const Compressor& fp16() {
  static const Cast compressor("fp16", DType::Float16);
  return compressor;
}

/// The upper half of a float32. Error of one cast: at most 2^-8 of a value, over the whole range of
/// normal float32.
const Compressor& bf16() {
  static const Cast compressor("bf16", DType::BFloat16);
  return compressor;
}

}  // namespace kolo::compression
