// The work of one thread of the kernel that adds up vectors. Nothing here needs a GPU: the test
// runs the same code on the CPU, thread after thread.
#pragma once

#include <cstdint>
#include <type_traits>

#include "comm/gpu/gpu.hpp"
#include "ops/kernels/device_elements.cuh"
#include "ops/kernels/vector_access.cuh"

namespace kolo::ops {

template <class T, class Sum>
__host__ __device__ T from_sum(Sum value) {
  if constexpr (std::is_same_v<T, double>) {
    return value;
  } else {
    return from_float<T>(static_cast<float>(value));
  }
}

/// Adds up `kWidthOf<T>` elements of all vectors from `i` on.
template <class Sum, bool kIsWhole, class T>
__host__ __device__ void add_up_at(const VectorsOf<T>& vectors, comm::DeviceWeights weights, T* to,
                                   std::uint64_t i) {
  constexpr std::uint32_t kWidth = kWidthOf<T>;
  const std::uint64_t length = vectors.count - i;
  Sum sums[kWidth];
#pragma unroll
  for (Sum& sum : sums) sum = -Sum(0);  // the neutral element: 0 would turn -0 into 0
#pragma unroll 4
  for (std::uint32_t v = 0; v < vectors.vectors; ++v) {
    const Sum factor = static_cast<Sum>(weights.each == nullptr ? weights.before
                                                                : weights.before * weights.each[v]);
    const auto loaded = load<kIsWhole>(vectors.at(v, i), length);
#pragma unroll
    for (std::uint32_t j = 0; j < kWidth; ++j) {
      sums[j] += product(to_sum<Sum>(loaded.elements[j]), factor);
    }
  }
  Vector<T, kWidth> result;
#pragma unroll
  for (std::uint32_t j = 0; j < kWidth; ++j) {
    result.elements[j] = from_sum<T>(product(sums[j], static_cast<Sum>(weights.after)));
  }
  store<kIsWhole>(result, to + i, length);
}

/// The work of thread `thread` of block `block` of `blocks`. Runs of 16 bytes are dealt to threads
/// in order, so that neighbouring threads access neighbouring memory.
template <class Sum, class T>
__host__ __device__ void add_up_block(const VectorsOf<T>& vectors, comm::DeviceWeights weights,
                                      T* to, std::uint64_t blocks, std::uint64_t block,
                                      std::uint32_t thread) {
  constexpr std::uint32_t kWidth = kWidthOf<T>;
  const std::uint64_t step = blocks * kVectorThreads * kWidth;
  const bool are_aligned = vectors.are_aligned() && reinterpret_cast<std::uintptr_t>(to) % 16 == 0;
  for (std::uint64_t i = (block * kVectorThreads + thread) * kWidth; i < vectors.count; i += step) {
    if (are_aligned && vectors.count - i >= kWidth) {
      add_up_at<Sum, true>(vectors, weights, to, i);
    } else {
      add_up_at<Sum, false>(vectors, weights, to, i);
    }
  }
}

/// Calls `visit` with a zero of the type in which sums are computed. Weighted terms may cancel, so
/// their sums are in float64, as on the CPU.
template <class T, class Visit>
void visit_sum(const comm::DeviceWeights& weights, Visit visit) {
  if constexpr (!std::is_same_v<T, double>) {
    if (weights.each == nullptr) return visit(float());
  }
  visit(double());
}

}  // namespace kolo::ops
