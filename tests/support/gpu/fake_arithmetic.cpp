#include "support/gpu/fake_arithmetic.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "base/convert.hpp"
#include "base/scale_integer.hpp"
#include "kolo/error.hpp"

namespace kolo::test {
namespace {

/// Accepts any integer type; a bool counts as 0 or 1.
void widen(const std::byte* from, DType dtype, std::vector<std::int64_t>& values) {
  const DType type = dtype == DType::Bool ? DType::UInt8 : dtype;
  base::convert(type, from, DType::Int64, values.data(), values.size());
}

void narrow(std::vector<std::int64_t>& values, DType dtype, std::byte* to) {
  if (dtype == DType::Bool) {
    for (std::int64_t& value : values) value = value != 0 ? 1 : 0;
  }
  const DType type = dtype == DType::Bool ? DType::UInt8 : dtype;
  base::convert(DType::Int64, values.data(), type, to, values.size());
}

bool is_known(DType from, DType to) {
  if (is_floating(from) || is_floating(to)) return is_floating(from) && is_floating(to);
  const bool is_short =
      (from == DType::Int16 && to == DType::Int32) || (from == DType::Int32 && to == DType::Int16);
  return from == to || from == DType::Int64 || to == DType::Int64 || is_short;
}

const std::byte* vector_at(const comm::DeviceVectors& vectors, int which) {
  const auto elements = static_cast<std::size_t>(which) * vectors.stride;
  return vectors.first + elements * size_of(vectors.dtype);
}

template <class Sum>
void add_up_as(const comm::DeviceVectors& vectors, const comm::DeviceFactors& factors,
               std::byte* to) {
  constexpr DType kSum = sizeof(Sum) == 8 ? DType::Float64 : DType::Float32;
  std::vector<Sum> values(vectors.count);
  std::vector<Sum> sums(vectors.count, Sum(-0.0));
  const auto multiply = [&](std::vector<Sum>& numbers, double by) {
    base::convert(kSum, numbers.data(), kSum, numbers.data(), numbers.size(), by);
  };
  for (int v = 0; v < vectors.vectors; ++v) {
    base::convert(vectors.dtype, vector_at(vectors, v), kSum, values.data(), values.size());
    multiply(values, factors.before);
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += values[i];
  }
  multiply(sums, factors.after);
  base::convert(kSum, sums.data(), vectors.dtype, to, sums.size());
}

}  // namespace

void check_conversion(const comm::DeviceConversion& conversion) {
  const auto [from, to, factor, divisor] = conversion;
  if (!is_known(from, to)) {
    throw InvalidArgument("convert: no way from " + std::string(name_of(from)) + " to " +
                          std::string(name_of(to)));
  }
  if (divisor == 0 || (divisor != 1 && from != DType::Int64)) {
    throw InvalidArgument("convert: expected divisor 1, or another than 0 of int64, got " +
                          std::to_string(divisor) + " of " + std::string(name_of(from)));
  }
}

void convert_run(const comm::DeviceRun& run, const comm::DeviceConversion& conversion) {
  const auto [from, to, factor, divisor] = conversion;
  if (is_floating(from)) {
    base::convert(from, run.from, to, run.to, run.count, factor);
    return;
  }
  std::vector<std::int64_t> values(run.count);
  widen(run.from, from, values);
  for (std::int64_t& value : values) value = base::scale_integer(value, factor) / divisor;
  narrow(values, to, run.to);
}

void add_up_vectors(const comm::DeviceVectors& vectors, const comm::DeviceFactors& factors,
                    std::byte* to) {
  if (vectors.dtype == DType::Float64) {
    add_up_as<double>(vectors, factors, to);
  } else {
    add_up_as<float>(vectors, factors, to);
  }
}

}  // namespace kolo::test
