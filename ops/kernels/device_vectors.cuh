// The work of one thread of the kernels of device_vectors.cu. Nothing here needs a GPU: the test
// runs the same code on the CPU, thread after thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "comm/gpu/gpu.hpp"
#include "ops/kernels/device_elements.cuh"

namespace kolo::ops {

inline constexpr std::uint32_t kVectorThreads = 256;  // of a block

/// comm::DeviceVectors of a known type.
template <class T>
struct VectorsOf {
  const T* first;
  std::uint64_t count;
  std::uint64_t stride;
  std::uint32_t vectors;

  __host__ __device__ const T* at(std::uint32_t vector, std::uint64_t i) const {
    return first + vector * stride + i;
  }
  /// Whether an instruction can load 16 bytes from the beginning of every vector.
  __host__ __device__ bool are_aligned() const {
    return reinterpret_cast<std::uintptr_t>(first) % 16 == 0 && stride * sizeof(T) % 16 == 0;
  }
};

/// Elements that one instruction loads or stores.
template <class T>
inline constexpr std::uint32_t kWidthOf = 16 / sizeof(T);

/// In which elements of type T are added up.
template <class T>
using SumOf = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class T>
__host__ __device__ SumOf<T> to_sum(T value) {
  if constexpr (std::is_same_v<T, double>) {
    return value;
  } else {
    return to_float(value);
  }
}

/// Calls `visit` with the VectorsOf their type. `vectors` has passed check_vectors.
template <class Visit>
void visit_vectors(const comm::DeviceVectors& vectors, Visit visit) {
  visit_dtype(vectors.dtype, [&](auto dtype) {
    if constexpr (is_floating(dtype())) {
      using T = ElementOf<dtype()>;
      visit(VectorsOf<T>{reinterpret_cast<const T*>(vectors.first), vectors.count, vectors.stride,
                         static_cast<std::uint32_t>(vectors.vectors)});
    }
  });
}

template <class T>
__host__ __device__ T from_sum(SumOf<T> value) {
  if constexpr (std::is_same_v<T, double>) {
    return value;
  } else {
    return from_float<T>(value);
  }
}

/// Adds up `kWidth` elements of all vectors from `i` on. One instruction loads them from a vector,
/// so they must be aligned.
template <std::uint32_t kWidth, class T>
__host__ __device__ void add_up_at(const VectorsOf<T>& vectors, comm::DeviceFactors factors, T* to,
                                   std::uint64_t i) {
  using Sum = SumOf<T>;
  using Elements = Vector<T, kWidth>;
  const Sum before = static_cast<Sum>(factors.before);
  Sum sums[kWidth];
#pragma unroll
  for (Sum& sum : sums) sum = -Sum(0);  // the neutral element: 0 would turn -0 into 0
#pragma unroll 4
  for (std::uint32_t v = 0; v < vectors.vectors; ++v) {
    const Elements loaded = *reinterpret_cast<const Elements*>(vectors.at(v, i));
#pragma unroll
    for (std::uint32_t j = 0; j < kWidth; ++j) {
      sums[j] += product(to_sum(loaded.elements[j]), before);
    }
  }
  Elements result;
#pragma unroll
  for (std::uint32_t j = 0; j < kWidth; ++j) {
    result.elements[j] = from_sum<T>(product(sums[j], static_cast<Sum>(factors.after)));
  }
  *reinterpret_cast<Elements*>(to + i) = result;
}

/// The work of thread `thread` of block `block` of `blocks`. Runs of 16 bytes are dealt to threads
/// in order, so that neighbouring threads access neighbouring memory.
template <class T>
__host__ __device__ void add_up_block(const VectorsOf<T>& vectors, comm::DeviceFactors factors,
                                      T* to, std::uint64_t blocks, std::uint64_t block,
                                      std::uint32_t thread) {
  constexpr std::uint32_t kWidth = kWidthOf<T>;
  const std::uint64_t step = blocks * kVectorThreads * kWidth;
  const bool are_aligned = vectors.are_aligned() && reinterpret_cast<std::uintptr_t>(to) % 16 == 0;
  for (std::uint64_t i = (block * kVectorThreads + thread) * kWidth; i < vectors.count; i += step) {
    if (are_aligned && vectors.count - i >= kWidth) {
      add_up_at<kWidth>(vectors, factors, to, i);
      continue;
    }
    for (std::uint64_t j = i; j < i + kWidth && j < vectors.count; ++j) {
      add_up_at<1>(vectors, factors, to, j);
    }
  }
}

}  // namespace kolo::ops
