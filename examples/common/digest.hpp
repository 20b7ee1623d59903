#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace examples {

/// A 64-bit fingerprint of a sequence of bytes (FNV-1a), to compare what ranks hold.
class Digest {
 public:
  void add(std::span<const std::byte> bytes);
  void add(std::string_view text) { add(std::as_bytes(std::span(text))); }

  std::uint64_t value() const { return value_; }
  std::string hex() const;  ///< 16 digits

 private:
  std::uint64_t value_ = 0xcbf29ce484222325;
};

}  // namespace examples
