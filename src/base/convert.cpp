#include "base/convert.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

#include "base/scale_integer.hpp"
#include "base/simd_targets.hpp"
#include "kolo/error.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "base/convert.cpp"
#include <hwy/foreach_target.h>
// Must come after foreach_target.h.
#include "base/simd_lanes-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace kolo::base::HWY_NAMESPACE {

template <class From, class To>
void convert_lanes(const void* in, void* out, std::size_t count, double scale) {
  constexpr std::size_t kUnroll = 4;
  const auto* from = static_cast<const typename From::Element*>(in);
  auto* to = static_cast<typename To::Element*>(out);
  const std::size_t lanes = From::size();
  const bool is_scaled = scale != 1.0;
  const auto factor = hn::Set(F32(), static_cast<float>(scale));
  const auto convert_vector = [&](const auto* source, auto* target) HWY_ATTR {
    auto value = From::load(source);
    if (is_scaled) value = hn::Mul(value, factor);
    To::store(value, target);
  };

  std::size_t i = 0;
  for (; i + kUnroll * lanes <= count; i += kUnroll * lanes) {
    for (std::size_t j = 0; j < kUnroll; ++j)
      convert_vector(from + i + j * lanes, to + i + j * lanes);
  }
  for (; i + lanes <= count; i += lanes) convert_vector(from + i, to + i);
  if (i < count) {
    // The tail goes through a padded vector, so that every element takes the same path.
    HWY_ALIGN std::array<typename From::Element, hn::MaxLanes(F32())> source{};
    HWY_ALIGN std::array<typename To::Element, hn::MaxLanes(F32())> target;
    std::copy(from + i, from + count, source.begin());
    convert_vector(source.data(), target.data());
    std::copy_n(target.begin(), count - i, to + i);
  }
}

using ConvertFunction = void (*)(const void*, void*, std::size_t, double);

/// Converts between Float16, BFloat16 and Float32, numbered in this order.
ConvertFunction find_convert(std::size_t from, std::size_t to) {
  using Plain = PlainLanes<float>;
  static constexpr ConvertFunction kTable[3][3] = {
      {convert_lanes<Float16Lanes, Float16Lanes>, convert_lanes<Float16Lanes, BFloat16Lanes>,
       convert_lanes<Float16Lanes, Plain>},
      {convert_lanes<BFloat16Lanes, Float16Lanes>, convert_lanes<BFloat16Lanes, BFloat16Lanes>,
       convert_lanes<BFloat16Lanes, Plain>},
      {convert_lanes<Plain, Float16Lanes>, convert_lanes<Plain, BFloat16Lanes>,
       convert_lanes<Plain, Plain>},
  };
  return kTable[from][to];
}

}  // namespace kolo::base::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kolo::base {
namespace {

HWY_EXPORT(find_convert);

using ConvertFunction = void (*)(const void*, void*, std::size_t, double);

ConvertFunction find_float_convert(DType from, DType to) {
  const auto position = [](DType dtype) {
    return static_cast<std::size_t>(dtype) - static_cast<std::size_t>(DType::Float16);
  };
  return HWY_DYNAMIC_DISPATCH(find_convert)(position(from), position(to));
}

template <class From, class To>
void convert_integers(const void* in, void* out, std::size_t count, double scale) {
  const auto* from = static_cast<const From*>(in);
  auto* to = static_cast<To*>(out);
  if (scale == 1.0) {
    for (std::size_t i = 0; i < count; ++i) to[i] = static_cast<To>(from[i]);
  } else {
    // Scaled as int64, so that only narrowing drops bits that do not fit.
    for (std::size_t i = 0; i < count; ++i) {
      to[i] = static_cast<To>(scale_integer(static_cast<std::int64_t>(from[i]), scale));
    }
  }
}

ConvertFunction find_widening(DType from) {
  switch (from) {
    case DType::UInt8: return convert_integers<std::uint8_t, std::int64_t>;
    case DType::Int8: return convert_integers<std::int8_t, std::int64_t>;
    case DType::Int16: return convert_integers<std::int16_t, std::int64_t>;
    case DType::Int32: return convert_integers<std::int32_t, std::int64_t>;
    case DType::Int64: return convert_integers<std::int64_t, std::int64_t>;
    default: return nullptr;
  }
}

ConvertFunction find_narrowing(DType to) {
  switch (to) {
    case DType::UInt8: return convert_integers<std::int64_t, std::uint8_t>;
    case DType::Int8: return convert_integers<std::int64_t, std::int8_t>;
    case DType::Int16: return convert_integers<std::int64_t, std::int16_t>;
    case DType::Int32: return convert_integers<std::int64_t, std::int32_t>;
    case DType::Int64: return convert_integers<std::int64_t, std::int64_t>;
    default: return nullptr;
  }
}

void scale_doubles(const void* in, void* out, std::size_t count, double scale) {
  const auto* from = static_cast<const double*>(in);
  auto* to = static_cast<double*>(out);
  for (std::size_t i = 0; i < count; ++i) to[i] = from[i] * scale;
}

constexpr std::size_t kBlock = 512;  // floats on the stack between float64 and another type

template <DType kFrom>
void convert_to_double(const void* in, void* out, std::size_t count, double scale) {
  const ConvertFunction convert_block = find_float_convert(kFrom, DType::Float32);
  const auto* from = static_cast<const std::byte*>(in);
  auto* to = static_cast<double*>(out);
  std::array<float, kBlock> block;
  for (std::size_t i = 0; i < count; i += kBlock) {
    const std::size_t length = std::min(kBlock, count - i);
    convert_block(from + i * size_of(kFrom), block.data(), length, scale);
    std::copy_n(block.begin(), length, to + i);
  }
}

template <DType kTo>
void convert_from_double(const void* in, void* out, std::size_t count, double scale) {
  const ConvertFunction convert_block = find_float_convert(DType::Float32, kTo);
  const auto* from = static_cast<const double*>(in);
  auto* to = static_cast<std::byte*>(out);
  std::array<float, kBlock> block;
  for (std::size_t i = 0; i < count; i += kBlock) {
    const std::size_t length = std::min(kBlock, count - i);
    for (std::size_t j = 0; j < length; ++j) block[j] = static_cast<float>(from[i + j]);
    convert_block(block.data(), to + i * size_of(kTo), length, scale);
  }
}

ConvertFunction find_to_double(DType from) {
  switch (from) {
    case DType::Float16: return convert_to_double<DType::Float16>;
    case DType::BFloat16: return convert_to_double<DType::BFloat16>;
    case DType::Float32: return convert_to_double<DType::Float32>;
    default: return scale_doubles;
  }
}

ConvertFunction find_from_double(DType to) {
  switch (to) {
    case DType::Float16: return convert_from_double<DType::Float16>;
    case DType::BFloat16: return convert_from_double<DType::BFloat16>;
    default: return convert_from_double<DType::Float32>;
  }
}

ConvertFunction find(DType from, DType to) {
  if (is_floating(from) && is_floating(to)) {
    if (to == DType::Float64) return find_to_double(from);
    if (from == DType::Float64) return find_from_double(to);
    return find_float_convert(from, to);
  }
  if (to == DType::Int64) return find_widening(from);
  if (from == DType::Int64) return find_narrowing(to);
  return nullptr;
}

}  // namespace

void convert(DType from, const void* in, DType to, void* out, std::size_t count, double scale) {
  const ConvertFunction function = find(from, to);
  if (function == nullptr) {
    throw InvalidArgument("convert: no way from " + std::string(name_of(from)) + " to " +
                          std::string(name_of(to)) +
                          "; floating types convert among themselves, integers to and from int64");
  }
  function(in, out, count, scale);
}

}  // namespace kolo::base
#endif  // HWY_ONCE
