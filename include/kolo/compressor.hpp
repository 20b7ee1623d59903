#pragma once

#include <cstddef>
#include <string_view>

#include "kolo/dtype.hpp"

namespace kolo {

/// How tensors are made smaller before they travel, and restored behind. Works on plain memory,
/// keeps no state, may be called from several threads at once.
///
/// The payload is an array of `wire_dtype` with as many elements as the tensor, so it is reduced
/// like any tensor: no rank needs the others' payloads one by one.
class Compressor {
 public:
  virtual ~Compressor() = default;

  virtual std::string_view name() const = 0;

  /// The payload's element type for tensors of `dtype`; `dtype` itself where nothing is gained, and
  /// then the tensor travels as it is.
  virtual DType wire_dtype(DType dtype) const = 0;

  /// Bytes of the payload of `count` elements of `dtype`.
  std::size_t payload_bytes(DType dtype, std::size_t count) const {
    return count * size_of(wire_dtype(dtype));
  }

  /// Fills `payload` with `payload_bytes(dtype, count)` bytes. Memory ranges do not overlap.
  virtual void compress(DType dtype, const void* tensor, std::size_t count,
                        void* payload) const = 0;

  /// Fills `tensor` with `count` elements of `dtype`.
  virtual void decompress(DType dtype, const void* payload, std::size_t count,
                          void* tensor) const = 0;
};

}  // namespace kolo
