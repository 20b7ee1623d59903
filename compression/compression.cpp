#include "kolo/compression.hpp"

#include <array>
#include <charconv>
#include <cstddef>

namespace kolo {

/// Writes the fewest digits that give the same number, so that equal fractions have equal names.
Compression Compression::with_fraction(const char* name, double fraction) {
  std::array<char, 32> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), fraction).ptr;
  return Compression(std::string(name) + ":" + std::string(digits.data(), end));
}

std::string_view name_of(CompressionScope scope) {
  return scope == CompressionScope::Everywhere ? "everywhere" : "between nodes";
}

}  // namespace kolo
