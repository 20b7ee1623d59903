#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#pragma GCC visibility push(default)
namespace kolo {

/// A lossy compressor of blocks of float32. Unlike those of a Compressor, its payloads cannot be
/// added up as they are: the receiver decodes them first. Stateless; threads may call it
/// concurrently. For tensors in CPU memory.
///
///     class Halves final : public kolo::Codec { … };  // examples/10_own_codec.cpp
///
/// A tensor is encoded in independent blocks. Of every block:
/// - equal values give an equal payload, which decodes to the same elements on all ranks;
/// - if it holds only zeros, they decode to zeros: ranks that have joined contribute such blocks;
/// - if it holds NaN or infinity, at least one of its elements decodes to a value that is not
///   finite, so that a GradScaler detects it.
///
/// Kolo encodes sums: an Average is divided, and other scales are applied, after decoding.
class Codec {
 public:
  virtual ~Codec() = default;

  /// Ranks compare names, so the name includes the parameters: "top_k:0.01".
  virtual std::string_view name() const = 0;

  /// Elements of a block; the last block of a range may be shorter.
  virtual std::size_t block() const = 0;

  /// The largest error of an element in one encoding, relative to the largest magnitude in its
  /// block: 1 if elements are left out, infinity if there is no bound. For readers and tests: no
  /// operation depends on it.
  virtual double error_bound() const = 0;

  /// Bytes of a payload.
  ///
  /// @param count elements, 1 … block()
  /// @param terms the number of payloads that were decoded and added up in this block; 1 for a
  ///   rank's own input. Sums of sparse payloads are less sparse.
  virtual std::size_t payload_bytes(std::size_t count, int terms) const = 0;

  /// Writes payload_bytes(values.size(), terms) bytes to `payload`, which may be unaligned.
  virtual void encode(std::span<const float> values, int terms, std::byte* payload) const = 0;

  /// Adds the elements of a payload to `values`.
  virtual void add_decoded(const std::byte* payload, int terms, std::span<float> values) const = 0;
};

}  // namespace kolo
#pragma GCC visibility pop
