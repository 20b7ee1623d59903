#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#pragma GCC visibility push(default)
namespace kolo {

/// Names the compressor or codec of an operation, the same on all ranks.
///
/// With none, fp16 and bf16, tensors are reduced in the type in which they are sent, with any
/// algorithm. The others are codecs: each rank sends encoded pieces to the rank that adds them up,
/// in float32, and receives the encoded sum. Codecs support Sum and Average, in CPU memory, and
/// every shard mode of a DistributedOptimizer. Integers, complex numbers and worlds of one rank are
/// never compressed. See docs/compression.md.
class Compression {
 public:
  Compression() = default;  ///< none

  /// No compression.
  static Compression none() { return Compression("none"); }
  /// Sends float32 and float64 as IEEE half precision: 11 significant bits, values up to 65504,
  /// steps of 2^-24 near zero. Larger values become infinity.
  static Compression fp16() { return Compression("fp16"); }
  /// Sends float32 and float64 as bfloat16: 8 significant bits, the range of float32.
  static Compression bf16() { return Compression("bf16"); }
  /// 8 bits per element and one scale per 256 elements: 3.9 times smaller than float32.
  static Compression int8() { return Compression("int8"); }
  /// The sign of each element and two means per 256 elements: 25 times smaller than float32. Use it
  /// with error feedback; see AllreduceOptions::residual. As in Seide et al., 1-Bit SGD (2014).
  static Compression one_bit() { return Compression("one_bit"); }
  /// The elements of largest magnitude among each 16384, with their indices, 6 bytes each; the
  /// others count as zeros. Use it with error feedback.
  ///
  /// @param fraction of elements to send, in (0, 1]
  static Compression top_k(double fraction = 0.01) { return with_fraction("top_k", fraction); }
  /// Randomly chosen elements, different ones in every step, 4 bytes each. Use it with error
  /// feedback.
  ///
  /// @param fraction of elements to send, in (0, 1]
  static Compression random_k(double fraction = 0.01) {
    return with_fraction("random_k", fraction);
  }
  /// A compressor or codec by its name: "fp16", "top_k:0.01", or one of InitOptions::codecs.
  /// Operations throw InvalidArgument if there is none.
  static Compression named(std::string name) { return Compression(std::move(name)); }

  std::string_view name() const { return name_; }

  bool operator==(const Compression&) const = default;

 private:
  explicit Compression(std::string name) : name_(std::move(name)) {}
  static Compression with_fraction(const char* name, double fraction);

  std::string name_ = "none";
};

/// Where an all-reduce over several nodes compresses. The same on all ranks.
enum class CompressionScope : std::uint8_t {
  Everywhere,  ///< all traffic between ranks
  /// Only traffic between nodes. Within a node, tensors are reduced in full precision, 16-bit
  /// floats in float32: a node of L ranks sends 1/L of the bytes that a codec sends with Everywhere
  /// (measured in docs/compression.md). On one node nothing is compressed. For Sum and Average in
  /// CPU memory.
  BetweenNodes,
};

std::string_view name_of(CompressionScope scope);

}  // namespace kolo
#pragma GCC visibility pop
