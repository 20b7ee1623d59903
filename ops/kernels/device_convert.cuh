// The work of one thread of the kernels of device_convert.cu. Nothing here needs a GPU: the test
// runs the same code on the CPU, thread after thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/scale_integer.hpp"
#include "kolo/dtype.hpp"
#include "ops/kernels/convert_table.hpp"
#include "ops/kernels/device_elements.cuh"

namespace kolo::ops {

inline constexpr std::uint32_t kConvertThreads = 256;  // of a block

/// One element of a conversion among floating types.
template <class FromElement, class ToElement>
struct FloatingConversion {
  using From = FromElement;
  using To = ToElement;
  double factor;

  __host__ __device__ To operator()(From value) const {
    if constexpr (std::is_same_v<From, double> && std::is_same_v<To, double>) {
      return value * factor;
    } else {
      return from_float<To>(to_float(value) * static_cast<float>(factor));
    }
  }
};

/// One element of a conversion among integers and Bool.
template <class FromElement, class ToElement>
struct IntegerConversion {
  using From = FromElement;
  using To = ToElement;
  double factor;
  std::int64_t divisor;

  /// As on the CPU, conversions from and to Int64 are scaled in Int64. Int32 stands in for Int16,
  /// which NCCL cannot reduce, and is scaled as Int16.
  template <class Number>
  using Scaled = std::conditional_t<
      std::is_same_v<From, To>, Number,
      std::conditional_t<sizeof(From) == 8 || sizeof(To) == 8, std::int64_t, std::int16_t>>;

  __host__ __device__ To operator()(From value) const {
    if constexpr (std::is_same_v<From, BoolElement>) {
      return scale(value.value);
    } else {
      return scale(value);
    }
  }

 private:
  template <class Number>
  __host__ __device__ To scale(Number number) const {
    auto scaled = base::scale_integer(static_cast<Scaled<Number>>(number), factor);
    if constexpr (std::is_same_v<From, std::int64_t>) {
      if (divisor != 1) scaled /= divisor;
    }
    if constexpr (std::is_same_v<To, BoolElement>) {
      return {static_cast<std::uint8_t>(scaled != 0)};
    } else {
      return static_cast<To>(scaled);
    }
  }
};

template <class T>
struct Copy {
  using From = T;
  using To = T;
  __host__ __device__ T operator()(T value) const { return value; }
};

/// Ignores its input, so that nothing is loaded.
template <class T>
struct Fill {
  using From = T;
  using To = T;
  T value;
  __host__ __device__ T operator()(T) const { return value; }
};

template <class T, std::uint32_t kWidth, class Convert>
__host__ __device__ auto convert_vector(const Vector<T, kWidth>& vector, Convert convert) {
  Vector<typename Convert::To, kWidth> converted;
#pragma unroll
  for (std::uint32_t i = 0; i < kWidth; ++i) {
    converted.elements[i] = convert(vector.elements[i]);
  }
  return converted;
}

/// Copies whole vectors: element by element, a vector of bytes would fill 16 registers instead of
/// 4.
template <class T, std::uint32_t kWidth>
__host__ __device__ auto convert_vector(const Vector<T, kWidth>& vector, Copy<T>) {
  return vector;
}

/// Converts every `kConvertThreads`-th of `count` vectors of `kWidth` elements. All loads of a
/// round come before its stores, so that many are in flight: memory latency is high.
template <std::uint32_t kWidth, class Convert>
__host__ __device__ void convert_vectors(const typename Convert::From* from,
                                         typename Convert::To* to, std::uint64_t count,
                                         Convert convert, std::uint32_t thread) {
  using FromVector = Vector<typename Convert::From, kWidth>;
  using ToVector = Vector<typename Convert::To, kWidth>;
  constexpr std::uint32_t kRound = 4;
  const auto* source = reinterpret_cast<const FromVector*>(from);
  auto* target = reinterpret_cast<ToVector*>(to);
  for (std::uint64_t first = thread; first < count; first += kRound * kConvertThreads) {
    FromVector loaded[kRound] = {};  // compilers do not see that only loaded ones are read
#pragma unroll
    for (std::uint32_t i = 0; i < kRound; ++i) {
      const std::uint64_t place = first + i * kConvertThreads;
      if (place < count) loaded[i] = source[place];
    }
#pragma unroll
    for (std::uint32_t i = 0; i < kRound; ++i) {
      const std::uint64_t place = first + i * kConvertThreads;
      if (place >= count) continue;
      target[place] = convert_vector(loaded[i], convert);
    }
  }
}

/// The work of thread `thread` of block `block`: vectors of 16 bytes on the side of the larger type
/// where both sides are aligned, single elements before and after them.
template <class Convert>
__host__ __device__ void convert_block(const ConvertTable& table, Convert convert,
                                       std::uint64_t block, std::uint32_t thread) {
  using From = typename Convert::From;
  using To = typename Convert::To;
  constexpr std::uint32_t kWidth = 16 / (sizeof(From) > sizeof(To) ? sizeof(From) : sizeof(To));
  for_each_piece(table, block, [&](std::uint32_t run, std::uint64_t begin, std::uint64_t count) {
    const From* from = reinterpret_cast<const From*>(table.from[run]) + begin;
    To* to = reinterpret_cast<To*>(table.to[run]) + begin;
    const std::uint64_t before =
        elements_before_vectors(reinterpret_cast<std::uintptr_t>(from), sizeof(From),
                                reinterpret_cast<std::uintptr_t>(to), sizeof(To), kWidth, count);
    const std::uint64_t vectors = (count - before) / kWidth;
    const std::uint64_t after = before + vectors * kWidth;
    convert_vectors<1>(from, to, before, convert, thread);
    convert_vectors<kWidth>(from + before, to + before, vectors, convert, thread);
    convert_vectors<1>(from + after, to + after, count - after, convert, thread);
  });
}

/// Calls `visit` with an unsigned integer of `size` bytes.
template <class Visit>
void visit_size(std::size_t size, Visit visit) {
  switch (size) {
    case 1: return visit(std::uint8_t());
    case 2: return visit(std::uint16_t());
    case 4: return visit(std::uint32_t());
    default: return visit(std::uint64_t());
  }
}

/// Calls `visit` with the function of one element, such as a FloatingConversion. `conversion` has
/// passed check_conversion.
template <class Visit>
void visit_conversion(comm::DeviceConversion conversion, Visit visit) {
  if (conversion.from == conversion.to && conversion.factor == 1.0 && conversion.divisor == 1) {
    return visit_size(size_of(conversion.from),
                      [&](auto element) { visit(Copy<decltype(element)>()); });
  }
  visit_dtype(conversion.from, [&](auto from) {
    visit_dtype(conversion.to, [&](auto to) {
      using From = ElementOf<from()>;
      using To = ElementOf<to()>;
      if constexpr (is_convertible_on_gpu(from(), to()) && is_floating(from())) {
        visit(FloatingConversion<From, To>{conversion.factor});
      } else if constexpr (is_convertible_on_gpu(from(), to())) {
        visit(IntegerConversion<From, To>{conversion.factor, conversion.divisor});
      }
    });
  });
}

}  // namespace kolo::ops
