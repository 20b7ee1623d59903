#pragma once

#include <cstddef>

#include "base/codec_format.hpp"
#include "kolo/dtype.hpp"

namespace kolo::comm {

/// A codec with GPU kernels.
struct DeviceCodec {
  base::CodecFormat format{};
  int terms = 1;  ///< number of inputs in the sum, see Codec

  /// From one block's payload to the next. Payloads begin where 4-byte words do.
  constexpr std::size_t stride() const { return aligned_bytes(format.block()); }
  /// Of the payloads of `count` elements, block by block: a multiple of 16, as links prefer.
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
  /// To encode: added to the elements, and then what the payload lacks of them, but for blocks that
  /// do not decode to finite numbers, whose residual stays. May be null.
  float* residual = nullptr;
};

/// What the ranks contribute to a sum of `count` elements: payloads, and this rank its elements.
struct CodedInputs {
  const std::byte* payloads = nullptr;  ///< of the others, in their order, each run_bytes long
  int ranks = 1;
  int own = 0;  ///< this rank
  const std::byte* elements = nullptr;
  DType dtype = DType::Float32;
  std::size_t count = 0;
  /// Added to the sum, and zero where that is finite. May be null.
  float* owed = nullptr;
};

}  // namespace kolo::comm
