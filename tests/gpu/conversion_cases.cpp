#include "gpu/conversion_cases.hpp"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/convert.hpp"
#include "base/scale_integer.hpp"
#include "ops/kernels/convert_table.hpp"

namespace kolo::test {
namespace {

using comm::DeviceConversion;
using comm::DeviceRun;
using Buffer = std::vector<std::byte>;

constexpr std::byte kPoison{0xA5};

/// The elements of one run, by their positions in both buffers.
struct Place {
  std::size_t from;
  std::size_t to;
  std::size_t count;
};

template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

template <class T>
void store(T value, std::byte* to) {
  std::memcpy(to, &value, sizeof(T));
}

std::int64_t load_integer(DType dtype, const std::byte* from) {
  switch (dtype) {
    case DType::Int8: return load<std::int8_t>(from);
    case DType::Int16: return load<std::int16_t>(from);
    case DType::Int32: return load<std::int32_t>(from);
    case DType::Int64: return load<std::int64_t>(from);
    default: return load<std::uint8_t>(from);
  }
}

void store_integer(DType dtype, std::int64_t value, std::byte* to) {
  if (dtype == DType::Bool) return store(static_cast<std::uint8_t>(value != 0), to);
  std::memcpy(to, &value, size_of(dtype));  // little-endian: low bytes first
}

std::int64_t scale_as(DType dtype, std::int64_t value, double factor) {
  switch (dtype) {
    case DType::Int8: return base::scale_integer(static_cast<std::int8_t>(value), factor);
    case DType::Int16: return base::scale_integer(static_cast<std::int16_t>(value), factor);
    case DType::Int32: return base::scale_integer(static_cast<std::int32_t>(value), factor);
    case DType::Int64: return base::scale_integer(value, factor);
    default: return base::scale_integer(static_cast<std::uint8_t>(value), factor);
  }
}

/// Integers and Bool are scaled as in collectives on the CPU: in the tensor's dtype, or in Int64 if
/// that dtype is reduced.
void convert_integer(DeviceConversion conversion, const std::byte* from, std::byte* to) {
  DType scaled = conversion.from;
  if (conversion.to != conversion.from) {
    scaled =
        size_of(conversion.from) == 8 || size_of(conversion.to) == 8 ? DType::Int64 : DType::Int16;
  }
  const std::int64_t value = load_integer(conversion.from, from);
  store_integer(conversion.to, scale_as(scaled, value, conversion.factor) / conversion.divisor, to);
}

void convert_element(DeviceConversion conversion, const std::byte* from, std::byte* to) {
  if (is_floating(conversion.from)) {
    base::convert(conversion.from, from, conversion.to, to, 1, conversion.factor);
  } else {
    convert_integer(conversion, from, to);
  }
}

bool is_nan(DType dtype, const std::byte* element) {
  double value = 0;
  if (!is_floating(dtype)) return false;
  base::convert(dtype, element, DType::Float64, &value, 1);
  return std::isnan(value);
}

/// Random bit patterns, including infinities, NaN and subnormal values.
Buffer random_elements(DType dtype, std::size_t count) {
  std::mt19937_64 random(count);
  Buffer buffer(count * size_of(dtype));
  for (std::byte& byte : buffer) {
    byte = static_cast<std::byte>(dtype == DType::Bool ? random() % 2 : random());
  }
  return buffer;
}

void expect_converted(const HostConvert& convert, DeviceConversion conversion,
                      const std::vector<Place>& places, bool in_place) {
  const std::size_t from_size = size_of(conversion.from);
  const std::size_t to_size = size_of(conversion.to);
  const std::size_t elements = places.back().from + places.back().to + places.back().count + 16;
  const Buffer input = random_elements(conversion.from, elements);
  Buffer expected = in_place ? input : Buffer(elements * to_size, kPoison);
  Buffer output = expected;
  Buffer from = input;
  std::vector<DeviceRun> runs;
  const std::byte* const source = in_place ? output.data() : from.data();
  for (const Place& place : places) {
    runs.push_back(
        {source + place.from * from_size, output.data() + place.to * to_size, place.count});
    for (std::size_t i = 0; i < place.count; ++i) {
      convert_element(conversion, input.data() + (place.from + i) * from_size,
                      expected.data() + (place.to + i) * to_size);
    }
  }
  convert(runs, in_place ? std::span<const std::byte>(output) : std::span<const std::byte>(from),
          output, conversion);
  for (std::size_t i = 0; i < elements; ++i) {
    const std::byte* const got = output.data() + i * to_size;
    const std::byte* const wanted = expected.data() + i * to_size;
    if (std::memcmp(got, wanted, to_size) == 0) continue;
    ASSERT_TRUE(is_nan(conversion.to, got) && is_nan(conversion.to, wanted))
        << name_of(conversion.from) << " to " << name_of(conversion.to) << " times "
        << conversion.factor << " by " << conversion.divisor << ": element " << i << " of "
        << elements;
  }
}

/// Consecutive runs of many sizes, at all offsets from a vector's alignment.
std::vector<Place> odd_places(bool in_place) {
  std::vector<Place> places;
  std::size_t from = 0;
  std::size_t to = 0;
  for (const std::size_t count :
       {0u, 1u, 3u, 255u, 256u, 257u, 100'003u, 5000u, 64u, 64u, 64u, 1001u}) {
    for (const std::size_t gap : {0u, 1u, 3u, 16u}) {
      from += gap;
      to = in_place ? from : to + (count % 2 == 0 ? gap : 2 * gap + 1);
      places.push_back({from, to, count});
      from += count;
      to += count;
    }
  }
  return places;
}

/// The documented pairs: floating dtypes among each other, integers and Bool to and from Int64,
/// Int16 to and from Int32, and every dtype but complex ones to itself.
bool is_documented(DType from, DType to) {
  const auto is_between = [&](DType a, DType b) {
    return (from == a && to == b) || (from == b && to == a);
  };
  if (is_complex(from) || is_complex(to) || is_floating(from) != is_floating(to)) return false;
  return from == to || is_floating(from) || from == DType::Int64 || to == DType::Int64 ||
         is_between(DType::Int16, DType::Int32);
}

void for_each_conversion(const std::function<void(DeviceConversion)>& test) {
  for (int from = 0; from < kDTypeCount; ++from) {
    for (int to = 0; to < kDTypeCount; ++to) {
      DeviceConversion conversion{.from = static_cast<DType>(from), .to = static_cast<DType>(to)};
      if (!is_documented(conversion.from, conversion.to)) continue;
      test(conversion);
      conversion.factor = 1.0 / 3;
      test(conversion);
      if (conversion.from != DType::Int64) continue;
      conversion.divisor = 7;
      test(conversion);
      conversion.factor = 1;
      test(conversion);
    }
  }
}

}  // namespace

void expect_converted_as_on_the_cpu(const HostConvert& convert) {
  for_each_conversion([&](DeviceConversion conversion) {
    expect_converted(convert, conversion, odd_places(false), false);
  });
}

void expect_converted_in_place(const HostConvert& convert) {
  for_each_conversion([&](DeviceConversion conversion) {
    if (size_of(conversion.from) != size_of(conversion.to)) return;
    expect_converted(convert, conversion, odd_places(true), true);
  });
}

void expect_many_runs_converted(const HostConvert& convert) {
  std::vector<Place> places;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < 3 * ops::ConvertTable::kCapacity + 5; ++i) {
    places.push_back({begin, begin, i % 9 * 11});
    begin += i % 9 * 11 + i % 2;
  }
  expect_converted(convert, {.from = DType::Float32, .to = DType::Float16, .factor = 0.25}, places,
                   false);
}

}  // namespace kolo::test
