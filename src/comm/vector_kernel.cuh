// What each thread of the kernels of vector_kernel.cu does. Nothing here needs a GPU: the test runs
// the same code on the CPU, thread after thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "comm/device_elements.cuh"
#include "comm/gpu.hpp"

namespace kolo::comm {

inline constexpr std::uint32_t kVectorThreads = 256;  // of a block

/// DeviceVectors of a known type.
template <class T>
struct VectorsOf {
  const T* first;
  std::uint64_t count;
  std::uint64_t stride;
  std::uint32_t vectors;

  __host__ __device__ const T* at(std::uint32_t vector, std::uint64_t i) const {
    return first + vector * stride + i;
  }
};

/// Elements of which one instruction loads or stores a vector.
template <class T>
inline constexpr std::uint32_t kWidthOf = 16 / sizeof(T);

template <class Sum, class T>
__host__ __device__ Sum to_sum(T value) {
  if constexpr (std::is_same_v<T, double>) return value;
  if constexpr (!std::is_same_v<T, double>) return to_float(value);
}

template <class T>
__host__ __device__ T from_sum(double value) {
  if constexpr (std::is_same_v<T, double>) return value;
  if constexpr (!std::is_same_v<T, double>) return from_float<T>(static_cast<float>(value));
}

/// Rounded, whatever is added to it.
__host__ __device__ inline float product(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
__host__ __device__ inline double product(double a, double b) {
#ifdef __CUDA_ARCH__
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}

template <class T>
__host__ __device__ bool is_whole(const T* place, std::uint64_t length) {
  return length >= kWidthOf<T> && reinterpret_cast<std::uintptr_t>(place) % 16 == 0;
}

/// The next elements, `length` or as many as a vector has, and zeros behind them.
template <class T>
__host__ __device__ Vector<T, kWidthOf<T>> load(const T* from, std::uint64_t length) {
  if (is_whole(from, length)) return *reinterpret_cast<const Vector<T, kWidthOf<T>>*>(from);
  Vector<T, kWidthOf<T>> loaded = {};
#pragma unroll
  for (std::uint32_t i = 0; i < kWidthOf<T>; ++i) {
    if (i < length) loaded.elements[i] = from[i];
  }
  return loaded;
}

template <class T>
__host__ __device__ void store(const Vector<T, kWidthOf<T>>& stored, T* to, std::uint64_t length) {
  if (is_whole(to, length)) {
    *reinterpret_cast<Vector<T, kWidthOf<T>>*>(to) = stored;
    return;
  }
#pragma unroll
  for (std::uint32_t i = 0; i < kWidthOf<T>; ++i) {
    if (i < length) to[i] = stored.elements[i];
  }
}

// --- sums ---

/// Thread `thread` of block `block` of `blocks` adds up every so many-th run of as many elements as
/// fill 16 bytes: neighbours in a block have neighbours in memory.
template <class Sum, class T>
__host__ __device__ void add_up_block(const VectorsOf<T>& vectors, DeviceWeights weights, T* to,
                                      std::uint64_t blocks, std::uint64_t block,
                                      std::uint32_t thread) {
  constexpr std::uint32_t kWidth = kWidthOf<T>;
  const std::uint64_t step = blocks * kVectorThreads * kWidth;
  const Sum after = static_cast<Sum>(weights.after);
  for (std::uint64_t i = (block * kVectorThreads + thread) * kWidth; i < vectors.count; i += step) {
    const std::uint64_t length = vectors.count - i;
    Sum sums[kWidth];
#pragma unroll
    for (Sum& sum : sums) sum = -Sum(0);  // changes nothing, where 0 would change -0
#pragma unroll 4
    for (std::uint32_t v = 0; v < vectors.vectors; ++v) {
      const Sum factor = static_cast<Sum>(
          weights.each == nullptr ? weights.before : weights.before * weights.each[v]);
      const auto loaded = load(vectors.at(v, i), length);
#pragma unroll
      for (std::uint32_t j = 0; j < kWidth; ++j) {
        sums[j] += product(to_sum<Sum>(loaded.elements[j]), factor);
      }
    }
    Vector<T, kWidth> result;
#pragma unroll
    for (std::uint32_t j = 0; j < kWidth; ++j) {
      result.elements[j] = from_sum<T>(product(sums[j], after));
    }
    store(result, to + i, length);
  }
}

// --- dot products ---

/// Pairs of so many vectors by as many are multiplied at once: each is loaded for all of them.
inline constexpr std::uint32_t kTile = 4;

/// A tile's first row and column in the matrix of dot products; none lies below the diagonal.
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

/// Sums of the threads of a block: those of each pair of a tile one after another.
inline constexpr std::uint32_t kTileSums = kTile * kTile * kVectorThreads;

/// The vectors from `first` on, as many as a tile has; zeros behind the last.
template <class T>
__host__ __device__ void load_side(const VectorsOf<T>& vectors, std::uint32_t first,
                                   std::uint64_t i, Vector<T, kWidthOf<T>> (&side)[kTile]) {
#pragma unroll
  for (std::uint32_t v = 0; v < kTile; ++v) {
    const bool is_there = first + v < vectors.vectors;
    side[v] = load(vectors.at(is_there ? first + v : 0, i), is_there ? vectors.count - i : 0);
  }
}

/// What thread `thread` of part `part` of `parts` has of a tile's dot products.
template <class T>
__host__ __device__ void multiply_part(const VectorsOf<T>& vectors, Tile tile, std::uint64_t parts,
                                       std::uint64_t part, std::uint32_t thread, double* sums) {
  constexpr std::uint32_t kWidth = kWidthOf<T>;
  const std::uint64_t step = parts * kVectorThreads * kWidth;
  double own[kTile][kTile] = {};
  for (std::uint64_t i = (part * kVectorThreads + thread) * kWidth; i < vectors.count; i += step) {
    Vector<T, kWidth> rows[kTile];
    Vector<T, kWidth> columns[kTile];
    load_side(vectors, tile.row, i, rows);
    load_side(vectors, tile.column, i, columns);
#pragma unroll
    for (std::uint32_t a = 0; a < kTile; ++a) {
#pragma unroll
      for (std::uint32_t b = 0; b < kTile; ++b) {
#pragma unroll
        for (std::uint32_t j = 0; j < kWidth; ++j) {
          own[a][b] += to_sum<double>(rows[a].elements[j]) * to_sum<double>(columns[b].elements[j]);
        }
      }
    }
  }
#pragma unroll
  for (std::uint32_t pair = 0; pair < kTile * kTile; ++pair) {
    sums[pair * kVectorThreads + thread] = own[pair / kTile][pair % kTile];
  }
}

/// One of the steps that leave the sums of all threads of a block in those of the first one: `half`
/// is half the threads, then half of that, and so on down to 1. `rows` of sums.
__host__ __device__ inline void add_halves(double* sums, std::uint32_t rows, std::uint32_t half,
                                           std::uint32_t thread) {
  if (thread >= half) return;
  for (std::uint32_t row = 0; row < rows; ++row) {
    sums[row * kVectorThreads + thread] += sums[row * kVectorThreads + thread + half];
  }
}

/// Puts the sums of a tile where they belong in a matrix; each of the first threads one.
__host__ __device__ inline void keep_tile(const double* sums, Tile tile, std::uint32_t vectors,
                                          std::uint32_t thread, double* matrix) {
  if (thread >= kTile * kTile) return;
  const std::uint32_t row = tile.row + thread / kTile;
  const std::uint32_t column = tile.column + thread % kTile;
  if (row > column || column >= vectors) return;
  matrix[static_cast<std::uint64_t>(row) * vectors + column] = sums[thread * kVectorThreads];
}

/// What thread `thread` has of element `element` of the matrix that is the sum of `parts` of them;
/// what lies below the diagonal equals what lies above it, and is not in them.
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

/// Calls `visit` with a zero of the type that sums are made in: those with weights, which may cancel,
/// in float64 as on the CPU.
template <class T, class Visit>
void visit_sum(const DeviceWeights& weights, Visit visit) {
  if constexpr (!std::is_same_v<T, double>) {
    if (weights.each == nullptr) return visit(float());
  }
  visit(double());
}

/// Calls `visit` with a `VectorsOf` the right type. `vectors` has passed check_vectors.
template <class Visit>
void visit_vectors(const DeviceVectors& vectors, Visit visit) {
  visit_dtype(vectors.dtype, [&](auto dtype) {
    if constexpr (is_floating(dtype())) {
      using T = ElementOf<dtype()>;
      visit(VectorsOf<T>{reinterpret_cast<const T*>(vectors.first), vectors.count, vectors.stride,
                         static_cast<std::uint32_t>(vectors.vectors)});
    }
  });
}

}  // namespace kolo::comm
