#pragma once

#include <cstddef>
#include <string_view>

#include "kolo/compressor.hpp"

namespace kolo::compression {

/// Sends float32 and float64 as one of the 16-bit types, all others unchanged.
class Cast final : public Compressor {
 public:
  Cast(std::string_view name, DType half) : name_(name), half_(half) {}

  std::string_view name() const override { return name_; }
  DType wire_dtype(DType dtype) const override;
  void compress(DType dtype, const void* tensor, std::size_t count, void* payload) const override;
  void decompress(DType dtype, const void* payload, std::size_t count, void* tensor) const override;

 private:
  std::string_view name_;
  DType half_;
};

}  // namespace kolo::compression
