#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/shared_buffer.hpp"
#include "kolo/tensor_view.hpp"
#include "runtime/values.hpp"

namespace kolo::test::shared_collectives_test {

inline constexpr std::size_t kBytes = 65536;
inline constexpr std::size_t kOffset = 64;

/// Elements of one type in a shared buffer, with neighbours that must not change.
class Elements {
 public:
  Elements(DType dtype, std::size_t count)
      : dtype_(dtype), count_(count), buffer_(kBytes, {.name = "memory"}) {
    std::fill_n(buffer_.data(), kBytes, kPaddingByte);
  }

  const SharedBuffer& buffer() const { return buffer_; }
  std::byte* data() const { return buffer_.data() + kOffset; }
  TensorView view(std::size_t begin, std::vector<std::int64_t> shape) const {
    return {data() + begin * size_of(dtype_), dtype_, std::move(shape)};
  }

  template <class Formula>
  void fill(Formula formula) {
    for (std::size_t i = 0; i < count_; ++i) set_value(dtype_, data(), i, formula(i));
  }
  template <class Formula>
  void expect(Formula formula, const std::string& what, double tolerance = 0) const {
    for (std::size_t i = 0; i < count_; ++i) {
      ASSERT_NEAR(value_at(dtype_, data(), i), formula(i), tolerance)
          << what << ", element " << i << " of " << count_;
    }
    const std::size_t end = kOffset + count_ * size_of(dtype_);
    for (std::size_t i = 0; i < kBytes; ++i) {
      if (i >= kOffset && i < end) continue;
      ASSERT_EQ(buffer_.data()[i], kPaddingByte)
          << what << ", byte " << i << " beside the elements";
    }
  }

 private:
  static constexpr std::byte kPaddingByte{0x3C};

  DType dtype_;
  std::size_t count_;
  SharedBuffer buffer_;
};

}  // namespace kolo::test::shared_collectives_test
