#pragma once

// One reduction of the contract: inputs in closed form, guarded memory, and the expected result.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "contract/guarded_buffer.hpp"
#include "contract/reference.hpp"
#include "kolo/algorithm.hpp"

namespace kolo::test {

/// The kind of input of a reduction.
enum class Values {
  Mixed,       ///< different for every rank and element
  Large,       ///< near the largest 16-bit float: the sum of two overflows
  NotANumber,  ///< mixed, with one NaN on each rank
};

struct ReduceCase {
  DType dtype = DType::Float32;
  Reduction reduction{};
  std::size_t count = 0;
  std::size_t segment_bytes = 64;
  bool in_place = false;
  std::size_t offset = 0;  ///< elements between an aligned address and the buffers
  Values values = Values::Mixed;
};

inline std::ostream& operator<<(std::ostream& out, const ReduceCase& item) {
  return out << name_of(item.reduction.op) << " of " << item.count << " " << name_of(item.dtype)
             << ", scales " << item.reduction.prescale << " and " << item.reduction.postscale
             << ", segments of " << item.segment_bytes << " bytes, offset " << item.offset
             << (item.in_place ? ", in place" : "");
}

/// Element `index` of `rank`'s input. The magnitudes of floats differ so much that each order of
/// summation gives different bits; products stay within the range of float16.
inline double reduce_value(const ReduceCase& item, int rank, std::size_t index) {
  if (item.values == Values::Large) return item.dtype == DType::Float16 ? 30000 : 0x1p127;
  if (item.values == Values::NotANumber && index == 3 + 5 * static_cast<std::size_t>(rank)) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  const auto mixed = static_cast<double>((index * 31 + static_cast<std::size_t>(rank) * 17) % 97);
  if (item.dtype == DType::Bool) return static_cast<int>(mixed) % 3 == 0 ? 1 : 0;
  if (is_integer(item.dtype)) return item.dtype == DType::UInt8 ? mixed : mixed - 48;
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

/// One rank's memory for an all-reduce.
class ReduceBuffers {
 public:
  ReduceBuffers(const ReduceCase& item, int rank)
      : case_(item),
        original_(reduce_input(item, rank)),
        input_(original_.size(), item.offset * size_of(item.dtype)),
        output_(original_.size(), item.offset * size_of(item.dtype)) {
    input_.fill(original_);
  }

  /// If the call is in place, fills in the input right before it.
  void fill() {
    if (case_.in_place) output_.fill(original_);
  }

  std::byte* output() { return output_.data(); }

  CollectiveCall call() {
    return {.input = case_.in_place ? output_.data() : input_.data(),
            .output = output_.data(),
            .count = case_.count,
            .dtype = case_.dtype,
            .reduction = case_.reduction,
            .segment_bytes = case_.segment_bytes};
  }

  void give_up() {
    input_.give_up();
    output_.give_up();
  }

  std::vector<std::byte> result() const {
    const std::span<const std::byte> bytes = output_.bytes();
    return {bytes.begin(), bytes.end()};
  }

  /// Checks that nothing but the output was written.
  void expect_guards_intact() const {
    EXPECT_TRUE(output_.is_guard_intact()) << case_ << ": written beside the output";
    EXPECT_TRUE(input_.is_guard_intact()) << case_ << ": written beside the input";
    EXPECT_TRUE(input_.holds(original_)) << case_ << ": the input has changed";
  }

 private:
  ReduceCase case_;
  std::vector<std::byte> original_;
  GuardedBuffer input_;
  GuardedBuffer output_;
};

/// The tolerance of element `index`, for each part of a complex number, if the order of summation
/// is not fixed.
inline double tolerance_at(const ReduceCase& item, int size, std::size_t index) {
  if (is_integer(item.dtype) || item.dtype == DType::Bool) return 0;
  const double largest_part = is_complex(item.dtype) ? std::sqrt(5.0) : 1.0;  // see set_value()
  double magnitude = item.reduction.op == ReduceOp::Product ? 1 : 0;
  for (int rank = 0; rank < size; ++rank) {
    const double value =
        largest_part * std::fabs(reduce_value(item, rank, index) * item.reduction.prescale);
    if (item.reduction.op == ReduceOp::Product) {
      magnitude *= value;
    } else {
      magnitude += value;
    }
  }
  const int mantissa_bits = item.dtype == DType::BFloat16             ? 7
                            : item.dtype == DType::Float16            ? 10
                            : real_type(item.dtype) == DType::Float32 ? 23
                                                                      : 52;
  // One rounding for each rank, each scale and the result; near zero, float16's smallest step.
  return std::ldexp((size + 3) * magnitude * std::fabs(item.reduction.postscale), -mantissa_bits) +
         (item.dtype == DType::Float16 ? (size + 3) * 0x1p-24 : 0);
}

/// Compares all elements with the rank-ordered sum, bit by bit if the algorithm guarantees that.
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
  const std::size_t parts = parts_of(item.dtype);
  for (std::size_t i = 0; i < item.count * parts; ++i) {
    const double value = value_at(real_type(item.dtype), result.data(), i);
    const double sum = value_at(real_type(item.dtype), expected.data(), i);
    if (std::isnan(sum)) {
      ASSERT_TRUE(std::isnan(value)) << item << ", element " << i << ": no NaN but " << value;
    } else {
      ASSERT_NEAR(value, sum, tolerance_at(item, size, i / parts)) << item << ", part " << i;
    }
  }
}

}  // namespace kolo::test
