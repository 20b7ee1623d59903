#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "kolo/codec.hpp"

namespace kolo::test {

/// A codec defined by the program: sends each element as a whole number of bytes.
class WholeCodec final : public Codec {
 public:
  std::string_view name() const override { return "whole"; }
  std::size_t block() const override { return 10; }
  double error_bound() const override { return 0.5; }
  std::size_t payload_bytes(std::size_t count, int) const override { return count; }
  void encode(std::span<const float> values, int, std::byte* payload) const override {
    for (std::size_t i = 0; i < values.size(); ++i) payload[i] = static_cast<std::byte>(values[i]);
  }
  void add_decoded(const std::byte* payload, int, std::span<float> values) const override {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] += static_cast<float>(payload[i]);
  }
};

}  // namespace kolo::test
