// How the threads of one GPU block encode, decode and add up the small blocks of int8 and one_bit.
// Nothing here needs a GPU: the test runs the same code on the CPU.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "ops/kernels/coded_elements.cuh"

namespace kolo::ops {

inline constexpr std::uint32_t kBlock = base::kSmallBlock;
/// Threads per block of elements.
inline constexpr std::uint32_t kLanes = kCodecThreads / kTileBlocks;

/// The shared memory of a GPU block.
struct SmallTile {
  float values[kTileBlocks][kBlock + 1];  // + 1: a column's values are in different banks
  std::uint32_t largest[kCodecThreads];
  float means[kTileBlocks][2];
};

/// A thread's elements: every kLanes-th of `length` elements from `begin` on.
struct SmallPlace {
  std::uint32_t block;
  std::uint32_t lane;
  std::uint32_t begin;
  std::uint32_t length;
};

__host__ __device__ inline SmallPlace place_of(std::uint32_t thread, std::uint32_t count) {
  const std::uint32_t block = thread / kLanes;
  const std::uint32_t begin = block * kBlock;
  const std::uint32_t left = count > begin ? count - begin : 0;
  return {block, thread % kLanes, begin, left < kBlock ? left : kBlock};
}

/// Rounds to nearest, ties to even.
template <class Team>
__host__ __device__ void encode_int8(const Team& team, SmallTile& tile, const TileInput& input,
                                     std::byte* payloads, std::uint64_t stride) {
  team.each([&](std::uint32_t thread) {
    const SmallPlace place = place_of(thread, input.count);
    std::uint32_t largest = 0;
    for (std::uint32_t i = place.lane; i < place.length; i += kLanes) {
      const float value = input.at(place.begin + i);
      const std::uint32_t bits = base::magnitude_bits(value);
      tile.values[place.block][i] = value;
      largest = bits > largest ? bits : largest;
    }
    tile.largest[thread] = largest;
  });
  team.each([&](std::uint32_t thread) {
    const SmallPlace place = place_of(thread, input.count);
    if (place.length == 0) return;
    std::uint32_t largest = 0;
    for (std::uint32_t lane = 0; lane < kLanes; ++lane) {
      const std::uint32_t bits = tile.largest[place.block * kLanes + lane];
      largest = bits > largest ? bits : largest;
    }
    const float unit = base::int8_unit(std::bit_cast<float>(largest));
    const bool has_unit = base::is_finite(unit);
    const bool is_finite = has_unit && base::is_finite(product(127.0F, unit));
    const float per_unit = 1.0F / unit;
    std::byte* const payload = payloads + place.block * stride;
    if (place.lane == 0) store_word(payload, unit);
    for (std::uint32_t i = place.lane; i < place.length; i += kLanes) {
      const float value = tile.values[place.block][i];
      const int code = has_unit ? static_cast<int>(rintf(product(value, per_unit))) : 1;
      payload[sizeof(float) + i] = static_cast<std::byte>(code);
      if (!is_finite) continue;
      input.set_residual(place.begin + i, value, product(static_cast<float>(code), unit));
    }
  });
}

/// The mean of the elements of one sign, summed from the first to the last, as on the CPU; 0 if
/// there are none.
__host__ __device__ inline float mean_of_sign(const float* values, std::uint32_t length,
                                              bool is_negative) {
  float sum = 0;
  std::uint32_t count = 0;
  for (std::uint32_t i = 0; i < length; ++i) {
    if ((values[i] < 0) != is_negative) continue;
    sum += values[i];
    ++count;
  }
  return count > 0 ? sum / static_cast<float>(count) : sum;
}

/// One thread computes each of the two means.
template <class Team>
__host__ __device__ void encode_one_bit(const Team& team, SmallTile& tile, const TileInput& input,
                                        std::byte* payloads, std::uint64_t stride) {
  team.each([&](std::uint32_t thread) {
    const SmallPlace place = place_of(thread, input.count);
    for (std::uint32_t i = place.lane; i < place.length; i += kLanes) {
      tile.values[place.block][i] = input.at(place.begin + i);
    }
  });
  team.each([&](std::uint32_t thread) {
    const SmallPlace place = place_of(thread, input.count);
    std::byte* const payload = payloads + place.block * stride;
    const float* const values = tile.values[place.block];
    const std::uint32_t bits_begin = place.lane * 8;
    if (bits_begin < place.length) {
      std::uint32_t bits = 0;
      for (std::uint32_t bit = 0; bit < 8 && bits_begin + bit < place.length; ++bit) {
        bits |= static_cast<std::uint32_t>(values[bits_begin + bit] < 0) << bit;
      }
      payload[2 * sizeof(float) + place.lane] = static_cast<std::byte>(bits);
    }
    if (place.lane > 1 || place.length == 0) return;
    const float mean = mean_of_sign(values, place.length, /*is_negative=*/place.lane == 1);
    tile.means[place.block][place.lane] = mean;
    store_word(payload + place.lane * sizeof(float), mean);
  });
  team.each([&](std::uint32_t thread) {
    const SmallPlace place = place_of(thread, input.count);
    const float* const means = tile.means[place.block];
    if (place.length == 0 || !base::is_finite(means[0]) || !base::is_finite(means[1])) return;
    for (std::uint32_t i = place.lane; i < place.length; i += kLanes) {
      const float value = tile.values[place.block][i];
      input.set_residual(place.begin + i, value, means[value < 0 ? 1 : 0]);
    }
  });
}

/// Element `i` of a payload.
template <base::CodecKind kKind>
__host__ __device__ float small_element(const std::byte* payload, std::uint32_t i) {
  if constexpr (kKind == base::CodecKind::Int8) {
    const auto code = static_cast<std::int8_t>(payload[sizeof(float) + i]);
    return product(static_cast<float>(code), load_word(payload));
  } else {
    const auto bits = static_cast<std::uint32_t>(payload[2 * sizeof(float) + i / 8]);
    return load_word(payload + (bits >> (i % 8) & 1) * sizeof(float));
  }
}

template <base::CodecKind kKind, class Team>
__host__ __device__ void decode_small(const Team& team, const TileOutput& output,
                                      const std::byte* payloads, std::uint64_t stride) {
  for_each(team, output.count, [&](std::uint32_t i) {
    output.put(i, small_element<kKind>(payloads + i / kBlock * stride, i % kBlock));
  });
}

template <base::CodecKind kKind, class Team>
__host__ __device__ void add_small(const Team& team, const TileSum& tile, std::uint64_t stride) {
  for_each(team, tile.part.count, [&](std::uint32_t i) {
    float sum = 0;
    for (int rank = 0; rank < tile.inputs.ranks; ++rank) {
      if (tile.is_own(rank)) {
        sum += tile.own_at(i);
      } else {
        const std::byte* const payload = tile.payloads(rank) + i / kBlock * stride;
        sum += small_element<kKind>(payload, i % kBlock);
      }
    }
    tile.finish(i, sum);
  });
}

}  // namespace kolo::ops
