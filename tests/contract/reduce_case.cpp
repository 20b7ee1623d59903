#include "contract/reduce_case.hpp"

#include <cmath>
#include <limits>

#include "contract/reference.hpp"

namespace kolo::test {

double reduce_value(const ReduceCase& item, int rank, std::size_t index) {
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

std::vector<std::byte> reduce_input(const ReduceCase& item, int rank) {
  std::vector<std::byte> input(item.count * size_of(item.dtype));
  for (std::size_t i = 0; i < item.count; ++i) {
    set_value(item.dtype, input.data(), i, reduce_value(item, rank, i));
  }
  return input;
}

double tolerance_at(const ReduceCase& item, int size, std::size_t index) {
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

void expect_reduced(const ReduceCase& item, const std::vector<std::byte>& result, int size,
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
    } else if (value != sum) {  // saves most of an assertion's time
      ASSERT_NEAR(value, sum, tolerance_at(item, size, i / parts)) << item << ", part " << i;
    }
  }
}

}  // namespace kolo::test
