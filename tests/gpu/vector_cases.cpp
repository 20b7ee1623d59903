#include "gpu/vector_cases.hpp"

#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/convert.hpp"
#include "support/gpu/fake_arithmetic.hpp"

namespace kolo::test {
namespace {

using Buffer = std::vector<std::byte>;

constexpr DType kFloatingTypes[] = {DType::Float16, DType::BFloat16, DType::Float32,
                                    DType::Float64};
constexpr std::byte kUntouched{0xA5};

struct Case {
  DType dtype;
  int vectors;
  std::size_t count;
  std::size_t gap;     // elements between vectors
  std::size_t offset;  // before the first vector and before the result

  std::string text() const {
    return std::to_string(vectors) + " vectors of " + std::to_string(count) + " " +
           std::string(name_of(dtype)) + ", gaps of " + std::to_string(gap) + ", offset " +
           std::to_string(offset);
  }
};

void for_each_case(const std::function<void(const Case&)>& test) {
  for (const DType dtype : kFloatingTypes) {
    for (const int vectors : {1, 2, 3, 4, 5, 9}) {
      for (const std::size_t count : {1u, 7u, 16u, 2049u, 30'011u}) {
        for (const std::size_t gap : {0u, 3u}) {
          test({dtype, vectors, count, gap, count % 4});
        }
      }
    }
  }
}

/// Magnitudes differ so much that the order of summation changes the bits.
double value_at(int vector, std::size_t i) {
  const auto mixed = static_cast<double>((i * 31 + static_cast<std::size_t>(vector) * 17) % 97);
  const bool is_large = (i + static_cast<std::size_t>(vector)) % 5 == 0;
  return (mixed - 48) / 7 * (is_large ? 100 : 1);
}

/// The filled memory of a case.
struct Memory {
  explicit Memory(const Case& item)
      : stride(item.count + item.gap),
        bytes((item.offset + static_cast<std::size_t>(item.vectors) * stride) *
              size_of(item.dtype)) {
    vectors = {bytes.data() + item.offset * size_of(item.dtype), item.dtype, item.count, stride,
               item.vectors};
    for (int v = 0; v < item.vectors; ++v) {
      std::vector<double> values;
      for (std::size_t i = 0; i < item.count; ++i) values.push_back(value_at(v, i));
      std::byte* const place =
          bytes.data() + (item.offset + static_cast<std::size_t>(v) * stride) * size_of(item.dtype);
      base::convert(DType::Float64, values.data(), item.dtype, place, item.count);
    }
  }

  std::size_t stride;
  Buffer bytes;
  comm::DeviceVectors vectors;
};

}  // namespace

void expect_added_up_in_order(VectorOperations& operations) {
  for_each_case([&](const Case& item) {
    const Memory memory(item);
    for (const comm::DeviceFactors factors :
         {comm::DeviceFactors{}, comm::DeviceFactors{1.0 / 3, 0.7}}) {
      const std::size_t size = size_of(item.dtype);
      Buffer expected((item.offset + item.count + 16) * size, kUntouched);
      Buffer got = expected;
      add_up_vectors(memory.vectors, factors, expected.data() + item.offset * size);
      operations.add_up(memory.vectors, factors, got.data() + item.offset * size);
      ASSERT_EQ(got, expected) << item.text() << ", after " << factors.after;
    }
  });
}

}  // namespace kolo::test
