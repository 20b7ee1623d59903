#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace kolo::test {

/// Memory between guard bytes, which detect writes outside it.
class GuardedBuffer {
 public:
  /// The memory begins `shift_bytes` after an aligned address.
  explicit GuardedBuffer(std::size_t size_bytes, std::size_t shift_bytes = 0)
      : size_bytes_(size_bytes),
        begin_(kGuardBytes + shift_bytes),
        memory_(begin_ + size_bytes + kGuardBytes, kGuard) {}

  std::byte* data() { return memory_.data() + begin_; }
  /// The content, or that at the time of give_up().
  std::span<const std::byte> bytes() const {
    if (is_given_up_) return last_;
    return {memory_.data() + begin_, size_bytes_};
  }

  void fill(std::span<const std::byte> content) {
    std::copy(content.begin(), content.end(), data());
  }
  /// Overwrites the memory, as a caller may after its call has ended.
  void give_up() {
    last_.assign(bytes().begin(), bytes().end());
    is_given_up_ = true;
    std::fill_n(data(), size_bytes_, kOverwritten);
  }
  bool holds(std::span<const std::byte> content) const {
    const std::span<const std::byte> own = bytes();
    return std::equal(own.begin(), own.end(), content.begin(), content.end());
  }
  bool is_guard_intact() const {
    const auto is_guard = [](std::byte byte) { return byte == kGuard; };
    const auto begin = memory_.begin() + static_cast<std::ptrdiff_t>(begin_);
    return std::all_of(memory_.begin(), begin, is_guard) &&
           std::all_of(begin + static_cast<std::ptrdiff_t>(size_bytes_), memory_.end(), is_guard);
  }

 private:
  static constexpr std::byte kGuard{0xA5};
  static constexpr std::byte kOverwritten{0x5B};
  static constexpr std::size_t kGuardBytes = 64;

  std::size_t size_bytes_;
  std::size_t begin_;
  std::vector<std::byte> memory_;
  std::vector<std::byte> last_{};
  bool is_given_up_ = false;
};

}  // namespace kolo::test
