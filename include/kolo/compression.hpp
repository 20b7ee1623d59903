#pragma once

#include <string_view>

namespace kolo {

/// The choice of a compressor, for options.
class Compression {
 public:
  Compression() = default;  ///< none

  /// Tensors travel as they are.
  static Compression none() { return Compression("none"); }
  /// float32 and float64 travel as IEEE half precision: 11 bits, values up to 65504, steps of 2^-24
  /// near zero; larger values become infinity.
  static Compression fp16() { return Compression("fp16"); }
  /// float32 and float64 travel as bfloat16: 8 bits, the range of float32.
  static Compression bf16() { return Compression("bf16"); }
  /// The compressor of this name, which must outlive the value. Operations refuse an unknown one.
  static Compression named(std::string_view name) { return Compression(name); }

  std::string_view name() const { return name_; }

  bool operator==(const Compression&) const = default;

 private:
  explicit Compression(std::string_view name) : name_(name) {}

  std::string_view name_ = "none";
};

}  // namespace kolo
