#pragma once

#include <cstddef>
#include <string_view>

#include "kolo/dtype.hpp"

#pragma GCC visibility push(default)
namespace kolo {

/// Makes tensors smaller before they are sent and restores them afterwards. Stateless; threads may
/// call it concurrently.
///
/// The payload has as many elements as the tensor, of type `wire_dtype`, and is reduced like any
/// other tensor.
class Compressor {
 public:
  virtual ~Compressor() = default;

  virtual std::string_view name() const = 0;

  /// @return the payload's element type for tensors of `dtype`; `dtype` itself if it is not
  ///   compressed
  virtual DType wire_dtype(DType dtype) const = 0;

  /// @return bytes of the payload of `count` elements of `dtype`
  std::size_t payload_bytes(DType dtype, std::size_t count) const {
    return count * size_of(wire_dtype(dtype));
  }

  /// Compresses `count` elements of `dtype`.
  ///
  /// @param payload receives payload_bytes(dtype, count) bytes; does not overlap `tensor`
  virtual void compress(DType dtype, const void* tensor, std::size_t count,
                        void* payload) const = 0;

  /// Restores `count` elements of `dtype`.
  virtual void decompress(DType dtype, const void* payload, std::size_t count,
                          void* tensor) const = 0;
};

}  // namespace kolo
#pragma GCC visibility pop
