#include <cmath>
#include <vector>

#include "gpu/vectors_on_cpu.hpp"
#include "ops/kernels/device_vectors.cuh"

namespace kolo::test {
namespace {

using namespace comm;
using namespace ops;

template <class Work>
void for_each_thread(Work work) {
  for (std::uint32_t thread = 0; thread < kVectorThreads; ++thread) work(thread);
}

void add_threads(double* sums, std::uint32_t rows) {
  for (std::uint32_t half = kVectorThreads / 2; half > 0; half /= 2) {
    for_each_thread([&](std::uint32_t thread) { add_halves(sums, rows, half, thread); });
  }
}

}  // namespace

void VectorsOnCpu::add_up(const DeviceVectors& vectors, DeviceWeights weights, std::byte* to) {
  visit_vectors(vectors, [&]<class T>(const VectorsOf<T>& typed) {
    visit_sum<T>(weights, [&]<class Sum>(Sum) {
      for (std::uint64_t block = 0; block < blocks_; ++block) {
        for_each_thread([&](std::uint32_t thread) {
          add_up_block<Sum>(typed, weights, reinterpret_cast<T*>(to), blocks_, block, thread);
        });
      }
    });
  });
}

void VectorsOnCpu::multiply_all(const DeviceVectors& vectors, std::span<double> products) {
  const std::uint64_t parts = dot_product_parts(vectors.vectors);
  const auto count = static_cast<std::uint32_t>(vectors.vectors);
  std::vector<double> partial(parts * products.size(), std::nan(""));
  std::vector<double> sums(kTileSums);
  visit_vectors(vectors, [&]<class T>(const VectorsOf<T>& typed) {
    for (std::uint32_t which = 0; which < tile_count(count); ++which) {
      const Tile tile = tile_at(count, which);
      for (std::uint64_t part = 0; part < parts; ++part) {
        for_each_thread([&](std::uint32_t thread) {
          multiply_part(typed, tile, parts, part, thread, sums.data());
        });
        add_threads(sums.data(), kTile * kTile);
        for_each_thread([&](std::uint32_t thread) {
          store_tile(sums.data(), tile, count, thread, partial.data() + part * products.size());
        });
      }
    }
  });
  for (std::size_t element = 0; element < products.size(); ++element) {
    for_each_thread([&](std::uint32_t thread) {
      add_parts(partial.data(), count, element, parts, thread, sums.data());
    });
    add_threads(sums.data(), 1);
    products[element] = sums[0];
  }
}

}  // namespace kolo::test
