// The compressor that changes nothing.
//
// Payload: n * size_of(dtype) bytes; may be summed. Error: none. State: none.
#include <cstring>

#include "compression/compressors.hpp"

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

}  // namespace

const Compressor& none() {
  static const None compressor;
  return compressor;
}

}  // namespace kolo::compression
