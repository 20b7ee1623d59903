#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#pragma GCC visibility push(default)
namespace kolo {

/// Names the compressor or codec of an operation, the same on all ranks.
///
/// none, fp16 and bf16 reduce tensors in the type that they are sent in, along every path. The
/// others are codecs: each rank sends encoded pieces to the rank that adds them up, in float32, and
/// gets the encoded sum. They are for sums and averages, and for a DistributedOptimizer in every
/// shard mode; those of a program work on CPU memory only. Integers, complex numbers and worlds
/// of one rank are reduced without them. See docs/compression.md.
class Compression {
 public:
  Compression() = default;  ///< none

  /// No compression.
  static Compression none() { return Compression("none"); }
  /// Sends float32 and float64 as IEEE half precision: 11 bits, values up to 65504, steps of 2^-24
  /// near zero; larger values become infinity.
  static Compression fp16() { return Compression("fp16"); }
  /// Sends float32 and float64 as bfloat16: 8 bits, the range of float32.
  static Compression bf16() { return Compression("bf16"); }
  /// 8 bits an element and a scale for each 256 of them; a 3.9th of float32.
  static Compression int8() { return Compression("int8"); }
  /// The sign of each element and two means for each 256 of them: a 25th of float32. For use with
  /// error feedback, see AllreduceOptions::residual. As Seide et al., 1-Bit SGD (2014).
  static Compression one_bit() { return Compression("one_bit"); }
  /// The elements of largest magnitude among each 16384, with their places, 6 bytes each; the
  /// others count as zeros. For use with error feedback.
  ///
  /// @param fraction of elements to send, in (0, 1]
  static Compression top_k(double fraction = 0.01) { return with_fraction("top_k", fraction); }
  /// Elements at random places, other ones in every step, 4 bytes each. For use with error
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

/// Where an all-reduce over several nodes compresses. All ranks name the same one.
enum class CompressionScope : std::uint8_t {
  Everywhere,  ///< all that ranks send one another
  /// Only what nodes send one another. Within a node, tensors are reduced in their own precision,
  /// 16-bit floats in float32, which shared memory does faster than any codec; on one node nothing
  /// is compressed. For sums and averages in CPU memory.
  BetweenNodes,
};

std::string_view name_of(CompressionScope scope);

}  // namespace kolo
#pragma GCC visibility pop
