// Access to the elements of several vectors for the kernels of device_vectors.cu.
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

template <class Sum, class T>
__host__ __device__ Sum to_sum(T value) {
  if constexpr (std::is_same_v<T, double>) {
    return value;
  } else {
    return to_float(value);
  }
}

/// Loads `kWidthOf<T>` elements: if `kIsWhole`, with one instruction, for which all of them must
/// exist and be aligned; otherwise `length` of them, followed by zeros.
template <bool kIsWhole, class T>
__host__ __device__ Vector<T, kWidthOf<T>> load(const T* from, std::uint64_t length) {
  if constexpr (kIsWhole) {
    return *reinterpret_cast<const Vector<T, kWidthOf<T>>*>(from);
  } else {
    Vector<T, kWidthOf<T>> loaded = {};
#pragma unroll
    for (std::uint32_t i = 0; i < kWidthOf<T>; ++i) {
      if (i < length) loaded.elements[i] = from[i];
    }
    return loaded;
  }
}

template <bool kIsWhole, class T>
__host__ __device__ void store(const Vector<T, kWidthOf<T>>& stored, T* to, std::uint64_t length) {
  if constexpr (kIsWhole) {
    *reinterpret_cast<Vector<T, kWidthOf<T>>*>(to) = stored;
  } else {
#pragma unroll
    for (std::uint32_t i = 0; i < kWidthOf<T>; ++i) {
      if (i < length) to[i] = stored.elements[i];
    }
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

}  // namespace kolo::ops
