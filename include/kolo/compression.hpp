#pragma once

#include <string_view>

#pragma GCC visibility push(default)
namespace kolo {

/// Names the compressor of an operation.
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
  /// A compressor of compression/registry.cpp. Operations throw InvalidArgument if there is none.
  ///
  /// @param name must outlive the object
  static Compression named(std::string_view name) { return Compression(name); }

  std::string_view name() const { return name_; }

  bool operator==(const Compression&) const = default;

 private:
  explicit Compression(std::string_view name) : name_(name) {}

  std::string_view name_ = "none";
};

}  // namespace kolo
#pragma GCC visibility pop
