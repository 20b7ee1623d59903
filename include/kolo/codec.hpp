#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#pragma GCC visibility push(default)
namespace kolo {

/// Makes blocks of float32 smaller, with loss. Unlike those of a Compressor, payloads cannot be
/// added up as they are: whoever receives them decodes them first. Stateless; threads may call it
/// concurrently. For tensors in CPU memory: GPUs have kernels for the built-in codecs alone.
///
///     class Halves final : public kolo::Codec { … };  // examples/10_own_codec.cpp
///
/// A tensor is cut into blocks, each of which is encoded by itself. NaN and infinity must decode to
/// a value that is not finite, at least at one element of the block, so that a GradScaler sees it.
class Codec {
 public:
  virtual ~Codec() = default;

  /// Ranks compare it, so it holds the parameters, too: "top_k:0.01".
  virtual std::string_view name() const = 0;

  /// Elements of a block, at most; the last one of a range may be shorter.
  virtual std::size_t block() const = 0;

  /// Of one encoding: the largest error of an element, divided by the largest magnitude in its
  /// block.
  virtual double error_bound() const = 0;

  /// Bytes of a payload.
  ///
  /// @param count elements, 1 … block()
  /// @param terms how many decoded payloads the block is the sum of; 1: it is a rank's own input.
  ///   Sums of sparse payloads are less sparse.
  virtual std::size_t payload_bytes(std::size_t count, int terms) const = 0;

  /// Writes payload_bytes(values.size(), terms) bytes, whose alignment is that of bytes.
  virtual void encode(std::span<const float> values, int terms, std::byte* payload) const = 0;

  /// Adds the elements of a payload to `values`.
  virtual void add_decoded(const std::byte* payload, int terms, std::span<float> values) const = 0;
};

}  // namespace kolo
#pragma GCC visibility pop
