// The work of one thread of the kernels that multiply vectors. Nothing here needs a GPU: the test
// runs the same code on the CPU, thread after thread.
#pragma once

#include <cstdint>

#include "ops/kernels/device_elements.cuh"
#include "ops/kernels/vector_access.cuh"

namespace kolo::ops {

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
