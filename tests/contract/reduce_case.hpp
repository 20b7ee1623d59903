#pragma once

// One all-reduce of the contract: inputs in closed form, memory with guards, what must come out.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "contract/reference.hpp"
#include "kolo/algorithm.hpp"

namespace kolo::test {

struct ReduceCase {
  DType dtype = DType::Float32;
  Reduction reduction{};
  std::size_t count = 0;
  std::size_t segment_bytes = 64;
  bool in_place = false;
  std::size_t offset = 0;  ///< elements between an aligned address and the buffers
};

inline std::ostream& operator<<(std::ostream& out, const ReduceCase& item) {
  return out << name_of(item.reduction.op) << " of " << item.count << " " << name_of(item.dtype)
             << ", scales " << item.reduction.prescale << " and " << item.reduction.postscale
             << ", segments of " << item.segment_bytes << " bytes, offset " << item.offset
             << (item.in_place ? ", in place" : "");
}

/// Element `index` of `rank`'s input. Floats have magnitudes so different that every other order of
/// summing them gives other bits; products stay within the range of float16.
inline double reduce_value(const ReduceCase& item, int rank, std::size_t index) {
  const auto mixed = static_cast<double>((index * 31 + static_cast<std::size_t>(rank) * 17) % 97);
  if (item.dtype == DType::Bool) return static_cast<int>(mixed) % 3 == 0 ? 1 : 0;
  if (!is_floating(item.dtype)) return item.dtype == DType::UInt8 ? mixed : mixed - 48;
  if (item.reduction.op == ReduceOp::Product) return (mixed < 48 ? -0.75 : 0.75) + mixed / 200;
  const bool is_large = (index + static_cast<std::size_t>(rank)) % 5 == 0;
  return (mixed - 48) / 7 * (is_large ? 100 : 1);
}

inline std::vector<std::byte> reduce_input(const ReduceCase& item, int rank) {
  std::vector<std::byte> input(item.count * size_of(item.dtype));
  for (std::size_t i = 0; i < item.count; ++i) {
    set_value(item.dtype, input.data(), i, reduce_value(item, rank, i));
  }
  return input;
}

/// One rank's memory for one case, with guard bytes around the output.
class ReduceBuffers {
 public:
  ReduceBuffers(const ReduceCase& item, int rank)
      : case_(item),
        original_(reduce_input(item, rank)),
        input_(shift() + original_.size()),
        output_(shift() + original_.size() + kGuardBytes, kGuard) {
    std::copy(original_.begin(), original_.end(), input_.data() + shift());
  }

  /// What a rank does right before it calls: in place, the input appears only now.
  void fill() {
    if (case_.in_place) std::copy(original_.begin(), original_.end(), output());
  }

  std::byte* output() { return output_.data() + shift(); }

  CollectiveCall call() {
    return {.input = case_.in_place ? output() : input_.data() + shift(),
            .output = output(),
            .count = case_.count,
            .dtype = case_.dtype,
            .reduction = case_.reduction,
            .segment_bytes = case_.segment_bytes};
  }

  std::vector<std::byte> result() {
    return {output(), output() + static_cast<std::ptrdiff_t>(original_.size())};
  }

  /// That nothing was written but the output.
  void expect_bounds_kept() {
    const auto is_guard = [](std::byte byte) { return byte == kGuard; };
    EXPECT_TRUE(std::all_of(output_.data(), output(), is_guard)) << case_;
    EXPECT_TRUE(std::all_of(output() + original_.size(), output_.data() + output_.size(), is_guard))
        << case_;
    EXPECT_TRUE(std::equal(original_.begin(), original_.end(), input_.data() + shift()))
        << case_ << ": the input has changed";
  }

 private:
  static constexpr std::byte kGuard{0xA5};
  static constexpr std::size_t kGuardBytes = 64;

  std::size_t shift() const { return case_.offset * size_of(case_.dtype); }

  ReduceCase case_;
  std::vector<std::byte> original_;
  std::vector<std::byte> input_;
  std::vector<std::byte> output_;
};

/// What element `index` may differ from the reference where the order of summing is open.
inline double tolerance_at(const ReduceCase& item, int size, std::size_t index) {
  if (!is_floating(item.dtype)) return 0;
  double magnitude = item.reduction.op == ReduceOp::Product ? 1 : 0;
  for (int rank = 0; rank < size; ++rank) {
    const double value = std::fabs(reduce_value(item, rank, index) * item.reduction.prescale);
    if (item.reduction.op == ReduceOp::Product) {
      magnitude *= value;
    } else {
      magnitude += value;
    }
  }
  const int mantissa_bits = item.dtype == DType::BFloat16  ? 7
                            : item.dtype == DType::Float16 ? 10
                            : item.dtype == DType::Float32 ? 23
                                                           : 52;
  // One rounding a rank, one for each scale and the last; near zero, float16's smallest step.
  return std::ldexp((size + 3) * magnitude * std::fabs(item.reduction.postscale), -mantissa_bits) +
         (item.dtype == DType::Float16 ? (size + 3) * 0x1p-24 : 0);
}

/// Compares with the rank-ordered sum: bit by bit where the algorithm promises that.
inline void expect_reduced(const ReduceCase& item, const std::vector<std::byte>& result, int size,
                           bool rank_ordered) {
  std::vector<std::vector<std::byte>> inputs;
  for (int rank = 0; rank < size; ++rank) inputs.push_back(reduce_input(item, rank));
  const std::vector<std::byte> expected = reference_combine(item.dtype, item.reduction, inputs);
  if (rank_ordered) {
    const std::size_t i = first_difference(item.dtype, expected.data(), result.data(), item.count);
    ASSERT_EQ(i, item.count) << item << ", element " << i << ": expected "
                             << value_at(item.dtype, expected.data(), i) << ", got "
                             << value_at(item.dtype, result.data(), i);
    return;
  }
  for (std::size_t i = 0; i < item.count; ++i) {
    ASSERT_NEAR(value_at(item.dtype, result.data(), i), value_at(item.dtype, expected.data(), i),
                tolerance_at(item, size, i))
        << item << ", element " << i;
  }
}

}  // namespace kolo::test
