// How the threads of one GPU block encode, decode and add up a block of top_k or random_k. Nothing
// here needs a GPU: the test runs the same code on the CPU. See small_block_codecs.cuh for what a
// Team is; add(counter, n) lets several threads add to one counter.
//
// The elements are read several times, from the cache: their 64 KiB do not fit into the shared
// memory of every GPU.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "ops/kernels/coded_elements.cuh"
#include "ops/kernels/largest_elements.cuh"

namespace kolo::ops {

/// Draws the seed of the places from the elements, writes it, and finds whether all are finite.
template <class Team>
__host__ __device__ void draw_seed(const Team& team, SparseTile& tile, const TileInput& input,
                                   std::byte* payload) {
  team.each([&](std::uint32_t thread) {
    std::uint64_t hash = 0;
    std::uint32_t is_finite = 1;
    for (std::uint32_t i = thread; i < input.count; i += kCodecThreads) {
      const float value = input.at(i);
      hash += base::random_k_hash(value, i);
      if (!base::is_finite(value)) is_finite = 0;
    }
    tile.hashes[thread] = hash;
    tile.finite[thread] = is_finite;
  });
  team.each([&](std::uint32_t thread) {
    if (thread != 0) return;
    std::uint64_t hash = 0;
    tile.is_finite = 1;
    for (std::uint32_t other = 0; other < kCodecThreads; ++other) {
      hash += tile.hashes[other];
      tile.is_finite &= tile.finite[other];
    }
    tile.seed = base::random_k_seed(hash, input.count);
    store_word(payload, std::bit_cast<float>(static_cast<std::uint32_t>(tile.seed)));
    store_word(payload + 4, std::bit_cast<float>(static_cast<std::uint32_t>(tile.seed >> 32)));
  });
}

/// Encodes the elements at random places, one in each of `kept` runs.
template <class Team>
__host__ __device__ void encode_random(const Team& team, SparseTile& tile, const TileInput& input,
                                       std::uint32_t kept, std::byte* payload) {
  draw_seed(team, tile, input, payload);
  const std::uint64_t seed = tile.seed;
  const bool is_finite = tile.is_finite != 0;
  std::byte* const values = payload + sizeof seed;
  team.each([&](std::uint32_t thread) {
    for (std::uint32_t i = thread; i < kept; i += kCodecThreads) {
      const std::size_t place = base::random_k_place(seed, i, input.count, kept);
      const float value = is_finite ? input.at(static_cast<std::uint32_t>(place))
                                    : std::numeric_limits<float>::quiet_NaN();
      store_word(values + i * sizeof(float), value);
    }
  });
  if (input.residual == nullptr || !is_finite) return;
  // Everything first, then what was sent is taken away.
  team.each([&](std::uint32_t thread) {
    for (std::uint32_t i = thread; i < input.count; i += kCodecThreads) {
      input.set_residual(i, input.at(i), 0.0F);
    }
  });
  team.each([&](std::uint32_t thread) {
    for (std::uint32_t i = thread; i < kept; i += kCodecThreads) {
      const std::size_t place = base::random_k_place(seed, i, input.count, kept);
      const float value = load_word(values + i * sizeof(float));
      input.set_residual(static_cast<std::uint32_t>(place), value, value);
    }
  });
}

/// Calls `visit(place, value)` for thread `thread`'s elements of a payload.
template <class Visit>
__host__ __device__ void visit_sparse(const base::CodecFormat& format, int terms,
                                      const std::byte* payload, std::uint32_t count,
                                      std::uint32_t thread, const Visit& visit) {
  const auto kept = static_cast<std::uint32_t>(format.kept(count, terms));
  if (format.is_random(terms)) {
    const auto low = std::bit_cast<std::uint32_t>(load_word(payload));
    const auto high = std::bit_cast<std::uint32_t>(load_word(payload + 4));
    const std::uint64_t seed = static_cast<std::uint64_t>(high) << 32 | low;
    for (std::uint32_t i = thread; i < kept; i += kCodecThreads) {
      visit(static_cast<std::uint32_t>(base::random_k_place(seed, i, count, kept)),
            load_word(payload + sizeof seed + i * sizeof(float)));
    }
  } else if (base::is_dense(count, kept)) {
    for (std::uint32_t i = thread; i < count; i += kCodecThreads) {
      visit(i, load_word(payload + i * sizeof(float)));
    }
  } else {
    for (std::uint32_t i = thread; i < kept; i += kCodecThreads) {
      visit(load_place(payload, i), load_value(payload, kept, i));
    }
  }
}

template <class Team>
__host__ __device__ void decode_sparse(const Team& team, const base::CodecFormat& format, int terms,
                                       const TileOutput& output, const std::byte* payload) {
  team.each([&](std::uint32_t thread) {
    for (std::uint32_t i = thread; i < output.count; i += kCodecThreads) output.put(i, 0.0F);
  });
  team.each([&](std::uint32_t thread) {
    visit_sparse(format, terms, payload, output.count, thread,
                 [&](std::uint32_t place, float value) { output.put(place, value); });
  });
}

/// Sums in global memory, as each rank's elements have different places.
template <class Team>
__host__ __device__ void add_sparse(const Team& team, const base::CodecFormat& format,
                                    const TileSum& tile) {
  const std::uint32_t count = tile.part.count;
  float* const sum = tile.sum + tile.part.first;
  team.each([&](std::uint32_t thread) {
    for (std::uint32_t i = thread; i < count; i += kCodecThreads) sum[i] = 0.0F;
  });
  for (int rank = 0; rank < tile.inputs.ranks; ++rank) {
    team.each([&](std::uint32_t thread) {
      if (!tile.is_own(rank)) {
        visit_sparse(format, 1, tile.payloads(rank), count, thread,
                     [&](std::uint32_t place, float value) { sum[place] += value; });
        return;
      }
      for (std::uint32_t i = thread; i < count; i += kCodecThreads) sum[i] += tile.own_at(i);
    });
  }
  if (tile.inputs.residual == nullptr) return;
  team.each([&](std::uint32_t thread) {
    for (std::uint32_t i = thread; i < count; i += kCodecThreads) tile.finish(i, sum[i]);
  });
}

}  // namespace kolo::ops
