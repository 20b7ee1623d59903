#include "common/digest.hpp"

#include <array>
#include <cinttypes>
#include <cstdio>

namespace examples {

void Digest::add(std::span<const std::byte> bytes) {
  for (const std::byte byte : bytes) {
    value_ = (value_ ^ std::to_integer<std::uint64_t>(byte)) * 0x100000001b3;
  }
}

std::string Digest::hex() const {
  std::array<char, 17> digits{};
  std::snprintf(digits.data(), digits.size(), "%016" PRIx64, value_);
  return digits.data();
}

}  // namespace examples
