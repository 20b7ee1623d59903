#include "torch/checkpoint/printable.hpp"

#include <cstddef>
#include <cstdint>

namespace kolo::tensors {
namespace {

constexpr std::uint32_t kLastCodePoint = 0x10FFFF;

/// The number of bytes of the first character; 0 if it cannot be printed.
std::size_t printable_bytes(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  if (first < 0x80) return (first >= 0x20 && first != 0x7F) || first == '\n' ? 1 : 0;
  const std::size_t size = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : first >= 0xC2 ? 2 : 0;
  if (size == 0 || first > 0xF4 || size > text.size()) return 0;
  std::uint32_t code = first & (0x7Fu >> size);
  for (std::size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3Fu);
  }
  constexpr std::uint32_t kFirstOfSize[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool is_surrogate = code >= 0xD800 && code <= 0xDFFF;
  const bool is_control = code >= 0x80 && code < 0xA0;
  const bool is_valid =
      code >= kFirstOfSize[size] && code <= kLastCodePoint && !is_surrogate && !is_control;
  return is_valid ? size : 0;
}

}  // namespace

std::string printable(std::string_view text) {
  constexpr std::string_view kHexDigits = "0123456789abcdef";
  std::string result;
  while (!text.empty()) {
    std::size_t size = printable_bytes(text);
    if (size == 0) {
      const unsigned byte = static_cast<unsigned char>(text.front());
      result += {'\\', 'x', kHexDigits[byte >> 4], kHexDigits[byte & 0xF]};
      size = 1;
    } else {
      result += text.substr(0, size);
    }
    text.remove_prefix(size);
  }
  return result;
}

}  // namespace kolo::tensors
