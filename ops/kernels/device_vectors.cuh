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

// --- sums ---

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

// --- dot products ---

/// A tile multiplies this many vectors by as many others, so that a loaded vector serves all of
/// them.
inline constexpr std::uint32_t kTile = 4;

/// A tile's first row and column in the matrix of dot products; no tile is below the diagonal.
struct Tile {
  std::uint32_t row;
  std::uint32_t column;
};

constexpr std::uint32_t tile_count(std::uint32_t vectors) {
  const std::uint32_t side = (vectors + kTile - 1) / kTile;
  return side * (side + 1) / 2;
}

constexpr Tile tile_at(std::uint32_t vectors, std::uint32_t which) {
  std::uint32_t row = 0;
  for (std::uint32_t length = (vectors + kTile - 1) / kTile; which >= length; --length, ++row) {
    which -= length;
  }
  return {row * kTile, (row + which) * kTile};
}

/// The sums of all threads of a block: those of one pair of a tile are consecutive.
inline constexpr std::uint32_t kTileSums = kTile * kTile * kVectorThreads;

/// Loads a tile's vectors from `first` on; zeros after the last vector.
template <bool kIsWhole, class T>
__host__ __device__ void load_side(const VectorsOf<T>& vectors, std::uint32_t first,
                                   std::uint64_t i, Vector<T, kWidthOf<T>> (&side)[kTile]) {
#pragma unroll
  for (std::uint32_t v = 0; v < kTile; ++v) {
    side[v] = {};
    if (first + v < vectors.vectors) {
      side[v] = load<kIsWhole>(vectors.at(first + v, i), vectors.count - i);
    }
  }
}

/// Adds the products of `kWidthOf<T>` elements from `i` on to a tile's dot products.
template <bool kIsWhole, class T>
__host__ __device__ void multiply_at(const VectorsOf<T>& vectors, Tile tile, std::uint64_t i,
                                     double (&products)[kTile][kTile]) {
  Vector<T, kWidthOf<T>> rows[kTile];
  Vector<T, kWidthOf<T>> columns[kTile];
  load_side<kIsWhole>(vectors, tile.row, i, rows);
  load_side<kIsWhole>(vectors, tile.column, i, columns);
#pragma unroll
  for (std::uint32_t a = 0; a < kTile; ++a) {
#pragma unroll
    for (std::uint32_t b = 0; b < kTile; ++b) {
#pragma unroll
      for (std::uint32_t j = 0; j < kWidthOf<T>; ++j) {
        products[a][b] +=
            to_sum<double>(rows[a].elements[j]) * to_sum<double>(columns[b].elements[j]);
      }
    }
  }
}

/// Computes what thread `thread` of part `part` of `parts` contributes to a tile's dot products.
template <class T>
__host__ __device__ void multiply_part(const VectorsOf<T>& vectors, Tile tile, std::uint64_t parts,
                                       std::uint64_t part, std::uint32_t thread, double* sums) {
  constexpr std::uint32_t kWidth = kWidthOf<T>;
  const std::uint64_t step = parts * kVectorThreads * kWidth;
  double own[kTile][kTile] = {};
  for (std::uint64_t i = (part * kVectorThreads + thread) * kWidth; i < vectors.count; i += step) {
    if (vectors.are_aligned() && vectors.count - i >= kWidth) {
      multiply_at<true>(vectors, tile, i, own);
    } else {
      multiply_at<false>(vectors, tile, i, own);
    }
  }
#pragma unroll
  for (std::uint32_t pair = 0; pair < kTile * kTile; ++pair) {
    sums[pair * kVectorThreads + thread] = own[pair / kTile][pair % kTile];
  }
}

/// One step of the tree that leaves a block's totals in the first thread's sums: `half` is half the
/// threads, then half of that, and so on down to 1. `rows` is the number of totals.
__host__ __device__ inline void add_halves(double* sums, std::uint32_t rows, std::uint32_t half,
                                           std::uint32_t thread) {
  if (thread >= half) return;
  for (std::uint32_t row = 0; row < rows; ++row) {
    sums[row * kVectorThreads + thread] += sums[row * kVectorThreads + thread + half];
  }
}

/// Writes the sums of a tile to their places in a matrix, one per thread.
__host__ __device__ inline void store_tile(const double* sums, Tile tile, std::uint32_t vectors,
                                           std::uint32_t thread, double* matrix) {
  if (thread >= kTile * kTile) return;
  const std::uint32_t row = tile.row + thread / kTile;
  const std::uint32_t column = tile.column + thread % kTile;
  if (row > column || column >= vectors) return;
  matrix[static_cast<std::uint64_t>(row) * vectors + column] = sums[thread * kVectorThreads];
}

/// Computes what thread `thread` contributes to element `element` of the sum of `parts` matrices.
/// These are symmetric, and have only the elements on and above the diagonal.
__host__ __device__ inline void add_parts(const double* partial, std::uint32_t vectors,
                                          std::uint64_t element, std::uint64_t parts,
                                          std::uint32_t thread, double* sums) {
  const std::uint64_t row = element / vectors;
  const std::uint64_t column = element % vectors;
  const std::uint64_t place = row <= column ? row * vectors + column : column * vectors + row;
  double sum = 0;
  for (std::uint64_t part = thread; part < parts; part += kVectorThreads) {
    sum += partial[part * vectors * vectors + place];
  }
  sums[thread] = sum;
}

}  // namespace kolo::ops
