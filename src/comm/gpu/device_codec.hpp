#pragma once

#include <cstddef>

#include "base/codec_format.hpp"
#include "kolo/dtype.hpp"

namespace kolo::comm {

/// A codec with GPU kernels.
struct DeviceCodec {
  base::CodecFormat format{};
  int terms = 1;  ///< number of inputs in the sum, see Codec

  /// Bytes from one block's payload to the next. Payloads are aligned to 4 bytes.
  constexpr std::size_t stride() const { return aligned_bytes(format.block()); }
  /// Bytes of the payloads of `count` elements, block by block: a multiple of 16, as links prefer.
  constexpr std::size_t run_bytes(std::size_t count) const {
    const std::size_t rest = count % format.block();
    const std::size_t bytes =
        count / format.block() * stride() + (rest > 0 ? aligned_bytes(rest) : 0);
    return (bytes + 15) / 16 * 16;
  }

 private:
  constexpr std::size_t aligned_bytes(std::size_t count) const {
    return (format.payload_bytes(count, terms) + 3) / 4 * 4;
  }
};

/// Elements of a floating type to be encoded, or payloads to be decoded.
struct CodedRun {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::size_t count = 0;  ///< elements
  /// Encoding only: added to the elements, then set to the encoding error. Keeps its value in
  /// blocks that do not decode to finite numbers. May be null.
  float* residual = nullptr;
};

/// The inputs of a sum of `count` elements: the other ranks' payloads and this rank's elements.
struct CodedInputs {
  const std::byte* payloads = nullptr;  ///< of the other ranks, in rank order, each run_bytes long
  int ranks = 1;
  int own = 0;  ///< this rank
  const std::byte* elements = nullptr;
  DType dtype = DType::Float32;
  std::size_t count = 0;
  /// Added to the sum, then set to zero where the sum is finite. May be null.
  float* residual = nullptr;
};

}  // namespace kolo::comm
