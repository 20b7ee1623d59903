#include "contract/reference.hpp"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstring>
#include <limits>

#include "contract/reference_access.hpp"

namespace kolo::test {
namespace {

/// reference_combine for complex numbers whose parts are of type T.
template <class T>
std::vector<std::byte> combine_complex(const Reduction& reduction,
                                       const std::vector<std::vector<std::byte>>& inputs) {
  using Complex = std::complex<T>;
  std::vector<std::byte> output(inputs[0].size());
  for (std::size_t at = 0; at < output.size(); at += sizeof(Complex)) {
    const auto input = [&](std::size_t k) {
      Complex value;
      std::memcpy(&value, &inputs[k][at], sizeof(Complex));
      return value * static_cast<T>(reduction.prescale);
    };
    Complex a = input(0);
    for (std::size_t k = 1; k < inputs.size(); ++k) {
      const Complex b = input(k);
      // By the definition, since the standard library's product corrects NaN results.
      a = reduction.op == ReduceOp::Sum ? a + b
                                        : Complex(a.real() * b.real() - a.imag() * b.imag(),
                                                  a.real() * b.imag() + a.imag() * b.real());
    }
    a *= static_cast<T>(reduction.postscale);
    std::memcpy(&output[at], &a, sizeof(Complex));
  }
  return output;
}

}  // namespace

double HalfFormat::decode(std::uint16_t bits) const {
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  const int significand = exponent == 0 ? mantissa : mantissa + (1 << mantissa_bits);
  const int power = exponent == 0 ? smallest_exponent() : exponent - bias();
  return sign * std::ldexp(significand, power - mantissa_bits);
}

std::uint16_t HalfFormat::encode(double value) const {
  const unsigned sign = std::signbit(value) ? 0x8000u : 0u;
  const unsigned infinity = ((1u << exponent_bits) - 1u) << mantissa_bits;
  if (std::isnan(value)) return static_cast<std::uint16_t>(sign | infinity | 1u);
  const double magnitude = std::fabs(value);
  if (magnitude == 0) return static_cast<std::uint16_t>(sign);
  if (std::isinf(value)) return static_cast<std::uint16_t>(sign | infinity);
  const int power = std::max(std::ilogb(magnitude), smallest_exponent());
  const double units = std::nearbyint(std::ldexp(magnitude, mantissa_bits - power));
  // A significand that rounds up to the next power of two carries into the exponent by itself.
  const double bits = units + std::ldexp(power - smallest_exponent(), mantissa_bits);
  return static_cast<std::uint16_t>(sign | std::min(static_cast<unsigned>(bits), infinity));
}

std::vector<std::byte> reference_combine(DType dtype, const Reduction& reduction,
                                         const std::vector<std::vector<std::byte>>& inputs) {
  if (reduction.op == ReduceOp::Custom) {
    std::vector<std::byte> result = inputs[0];
    for (std::size_t k = 1; k < inputs.size(); ++k) {
      reduction.custom->combine(dtype, inputs[k].data(), result.data(),
                                result.size() / size_of(dtype));
    }
    return result;
  }
  if (dtype == DType::Complex64) return combine_complex<float>(reduction, inputs);
  if (dtype == DType::Complex128) return combine_complex<double>(reduction, inputs);
  return with_access(dtype, [&](auto access) {
    std::vector<std::byte> output(inputs[0].size());
    const double pre = dtype == DType::Bool ? 1.0 : reduction.prescale;
    const double post = dtype == DType::Bool ? 1.0 : reduction.postscale;
    for (std::size_t at = 0; at < output.size(); at += size_of(dtype)) {
      auto result = reference_scale(access.load(&inputs[0][at]), pre);
      for (std::size_t k = 1; k < inputs.size(); ++k) {
        result = reference_apply(reduction.op, result,
                                 reference_scale(access.load(&inputs[k][at]), pre));
      }
      access.store(reference_scale(result, post), &output[at]);
    }
    return output;
  });
}

double value_at(DType dtype, const std::byte* buffer, std::size_t index) {
  if (is_complex(dtype)) {
    const double real = value_at(real_type(dtype), buffer, 2 * index);
    const double imaginary = value_at(real_type(dtype), buffer, 2 * index + 1);
    return imaginary == -2 * real ? real : std::numeric_limits<double>::quiet_NaN();
  }
  return with_access(dtype, [&](auto access) {
    return static_cast<double>(access.load(buffer + index * size_of(dtype)));
  });
}

void set_value(DType dtype, std::byte* buffer, std::size_t index, double value) {
  if (is_complex(dtype)) {
    set_value(real_type(dtype), buffer, 2 * index, value);
    set_value(real_type(dtype), buffer, 2 * index + 1, -2 * value);
    return;
  }
  with_access(dtype, [&](auto access) {
    using T = typename decltype(access)::Type;
    access.store(static_cast<T>(value), buffer + index * size_of(dtype));
    return 0;
  });
}

std::size_t first_difference(DType dtype, const std::byte* a, const std::byte* b,
                             std::size_t count) {
  const DType part = real_type(dtype);
  for (std::size_t i = 0; i < count * parts_of(dtype); ++i) {
    if (std::memcmp(a + i * size_of(part), b + i * size_of(part), size_of(part)) == 0) continue;
    if (std::isnan(value_at(part, a, i)) && std::isnan(value_at(part, b, i))) continue;
    return i / parts_of(dtype);
  }
  return count;
}

}  // namespace kolo::test
