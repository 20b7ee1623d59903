#include "support/fake_arithmetic.hpp"

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

/// Of any integer type; a bool counts as 0 or 1.
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

}  // namespace kolo::test
