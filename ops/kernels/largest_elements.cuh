// How the threads of one GPU block find and encode the elements of largest magnitude.
#pragma once

#include <bit>
#include <cstdint>

#include "ops/kernels/coded_elements.cuh"

namespace kolo::ops {

/// Digits of a magnitude, the highest first: fewer and longer ones than on the CPU, whose bins must
/// stay in the cache.
inline constexpr std::uint32_t kDigits = 3;
inline constexpr std::uint32_t kBins = 2048;

struct Digit {
  std::uint32_t shift;
  std::uint32_t bits;
};
__host__ __device__ constexpr Digit digit_at(std::uint32_t which) {
  return which == 0 ? Digit{20, 11} : which == 1 ? Digit{10, 10} : Digit{0, 10};
}

/// Bins are added up in groups, and groups in rows, so that a bin is found in few steps.
inline constexpr std::uint32_t kGroupBins = kBins / kCodecThreads;
inline constexpr std::uint32_t kRows = 16;
inline constexpr std::uint32_t kRowThreads = kCodecThreads / kRows;

/// The shared memory of a GPU block.
struct SparseTile {
  std::uint32_t bins[kBins];
  std::uint32_t groups[kCodecThreads];
  std::uint32_t rows[kRows];
  std::uint32_t larger[kCodecThreads];  // each thread's elements above the least one that is sent
  std::uint32_t equal[kCodecThreads];   // and of its magnitude
  std::uint32_t larger_rows[kRows];
  std::uint32_t equal_rows[kRows];
  std::uint32_t least;  // known digits of the magnitude of the least one
  std::uint32_t ties;   // how many elements with these digits are sent
  std::uint32_t is_finite;
  std::uint32_t finite[kCodecThreads];
  std::uint64_t hashes[kCodecThreads];
  std::uint64_t seed;
};

// A payload has places of 2 bytes each, then values, which are only aligned to 2 bytes.

__host__ __device__ inline std::uint32_t load_place(const std::byte* payload, std::uint32_t i) {
  return reinterpret_cast<const std::uint16_t*>(payload)[i];
}
__host__ __device__ inline float load_value(const std::byte* payload, std::uint32_t kept,
                                            std::uint32_t i) {
  const auto* const words = reinterpret_cast<const std::uint16_t*>(payload) + kept + 2 * i;
  return std::bit_cast<float>(static_cast<std::uint32_t>(words[1]) << 16 | words[0]);
}
__host__ __device__ inline void store_placed(std::byte* payload, std::uint32_t kept,
                                             std::uint32_t i, std::uint32_t place, float value) {
  auto* const words = reinterpret_cast<std::uint16_t*>(payload);
  const auto bits = std::bit_cast<std::uint32_t>(value);
  words[i] = static_cast<std::uint16_t>(place);
  words[kept + 2 * i] = static_cast<std::uint16_t>(bits);
  words[kept + 2 * i + 1] = static_cast<std::uint16_t>(bits >> 16);
}

/// Descends from the last of `count` counters to the one that holds the `ties`-th element, and
/// subtracts those above it from `ties`.
__host__ __device__ inline std::uint32_t descend(const std::uint32_t* counters, std::uint32_t count,
                                                 std::uint32_t& ties) {
  std::uint32_t which = count - 1;
  while (counters[which] < ties) ties -= counters[which--];
  return which;
}

/// Adds up bins in groups, and groups in rows.
template <class Team>
__host__ __device__ void add_up_bins(const Team& team, SparseTile& tile) {
  team.each([&](std::uint32_t thread) {
    std::uint32_t sum = 0;
    for (std::uint32_t i = 0; i < kGroupBins; ++i) sum += tile.bins[thread * kGroupBins + i];
    tile.groups[thread] = sum;
  });
  team.each([&](std::uint32_t thread) {
    if (thread >= kRows) return;
    std::uint32_t sum = 0;
    for (std::uint32_t i = 0; i < kRowThreads; ++i) sum += tile.groups[thread * kRowThreads + i];
    tile.rows[thread] = sum;
  });
}

/// Finds the bin with the last of the `ties` elements that are sent; subtracts those above it.
__host__ __device__ inline std::uint32_t find_bin(const SparseTile& tile, std::uint32_t& ties) {
  const std::uint32_t row = descend(tile.rows, kRows, ties);
  const std::uint32_t first_group = row * kRowThreads;
  const std::uint32_t group = first_group + descend(tile.groups + first_group, kRowThreads, ties);
  const std::uint32_t first_bin = group * kGroupBins;
  return first_bin + descend(tile.bins + first_bin, kGroupBins, ties);
}

/// Finds the magnitude of the least element that is sent, how many elements of that magnitude are
/// sent, and whether all elements are finite.
template <class Team>
__host__ __device__ void find_least(const Team& team, SparseTile& tile, const TileInput& input,
                                    std::uint32_t kept) {
  team.each([&](std::uint32_t thread) {
    if (thread != 0) return;
    tile.least = 0;
    tile.ties = kept;
  });
  std::uint32_t known = 0;  // mask of the digits that are decided
  for (std::uint32_t which = 0; which < kDigits; ++which) {
    const Digit digit = digit_at(which);
    const std::uint32_t mask = (1U << digit.bits) - 1;
    team.each([&](std::uint32_t thread) {
      for (std::uint32_t bin = thread; bin < kBins; bin += kCodecThreads) tile.bins[bin] = 0;
    });
    team.each([&](std::uint32_t thread) {
      for (std::uint32_t i = thread; i < input.count; i += kCodecThreads) {
        const std::uint32_t bits = base::magnitude_bits(input.at(i));
        if ((bits & known) == tile.least) team.add(tile.bins[bits >> digit.shift & mask], 1);
      }
    });
    add_up_bins(team, tile);
    team.each([&](std::uint32_t thread) {
      if (thread != 0) return;
      if (which == 0) {  // the first digit is the exponent and three bits more
        std::uint32_t others = 0;
        for (std::uint32_t bin = kBins - 8; bin < kBins; ++bin) others += tile.bins[bin];
        tile.is_finite = others == 0 ? 1 : 0;
      }
      tile.least |= find_bin(tile, tile.ties) << digit.shift;
    });
    known |= mask << digit.shift;
  }
}

/// Consecutive elements, of which one thread counts and writes those that are sent.
struct Neighbours {
  std::uint32_t begin;
  std::uint32_t end;
};
__host__ __device__ inline Neighbours neighbours_of(std::uint32_t thread, std::uint32_t count) {
  const std::uint32_t run = (count + kCodecThreads - 1) / kCodecThreads;
  const std::uint32_t end = (thread + 1) * run;
  return {thread * run, end < count ? end : count};
}

/// Counts, per thread and per row, the elements above the least one that is sent, and those of its
/// magnitude.
template <class Team>
__host__ __device__ void count_sent(const Team& team, SparseTile& tile, const TileInput& input) {
  const std::uint32_t least = tile.least;
  team.each([&](std::uint32_t thread) {
    const Neighbours own = neighbours_of(thread, input.count);
    std::uint32_t larger = 0;
    std::uint32_t equal = 0;
    for (std::uint32_t i = own.begin; i < own.end; ++i) {
      const std::uint32_t bits = base::magnitude_bits(input.at(i));
      larger += bits > least ? 1 : 0;
      equal += bits == least ? 1 : 0;
    }
    tile.larger[thread] = larger;
    tile.equal[thread] = equal;
  });
  team.each([&](std::uint32_t thread) {
    if (thread >= kRows) return;
    std::uint32_t larger = 0;
    std::uint32_t equal = 0;
    for (std::uint32_t i = 0; i < kRowThreads; ++i) {
      larger += tile.larger[thread * kRowThreads + i];
      equal += tile.equal[thread * kRowThreads + i];
    }
    tile.larger_rows[thread] = larger;
    tile.equal_rows[thread] = equal;
  });
}

/// Elements above the least one that is sent, and those of its magnitude.
struct SentCount {
  std::uint32_t larger = 0;
  std::uint32_t equal = 0;
};

/// The counts of all threads before `thread`.
__host__ __device__ inline SentCount sent_before(const SparseTile& tile, std::uint32_t thread) {
  const std::uint32_t row = thread / kRowThreads;
  SentCount sent;
  for (std::uint32_t i = 0; i < row; ++i) {
    sent.larger += tile.larger_rows[i];
    sent.equal += tile.equal_rows[i];
  }
  for (std::uint32_t i = row * kRowThreads; i < thread; ++i) {
    sent.larger += tile.larger[i];
    sent.equal += tile.equal[i];
  }
  return sent;
}

/// Writes the elements that are sent in the order of their places.
template <class Team>
__host__ __device__ void write_largest(const Team& team, SparseTile& tile, const TileInput& input,
                                       std::uint32_t kept, std::byte* payload) {
  count_sent(team, tile, input);
  const std::uint32_t least = tile.least;
  const std::uint32_t ties = tile.ties;
  const bool is_finite = tile.is_finite != 0;
  team.each([&](std::uint32_t thread) {
    const Neighbours own = neighbours_of(thread, input.count);
    const SentCount before = sent_before(tile, thread);
    std::uint32_t equal = before.equal;
    std::uint32_t next = before.larger + (equal < ties ? equal : ties);
    for (std::uint32_t i = own.begin; i < own.end; ++i) {
      const float value = input.at(i);
      const std::uint32_t bits = base::magnitude_bits(value);
      const bool is_sent = bits > least || (bits == least && equal++ < ties);
      if (is_sent) store_placed(payload, kept, next++, i, value);
      if (is_finite) input.set_residual(i, value, is_sent ? value : 0.0F);
    }
  });
}

/// Writes all values unchanged.
template <class Team>
__host__ __device__ void write_all(const Team& team, SparseTile& tile, const TileInput& input,
                                   std::byte* payload) {
  team.each([&](std::uint32_t thread) {
    std::uint32_t is_finite = 1;
    for (std::uint32_t i = thread; i < input.count; i += kCodecThreads) {
      const float value = input.at(i);
      store_word(payload + i * sizeof(float), value);
      if (!base::is_finite(value)) is_finite = 0;
    }
    tile.finite[thread] = is_finite;
  });
  team.each([&](std::uint32_t thread) {
    if (thread != 0) return;
    tile.is_finite = 1;
    for (std::uint32_t other = 0; other < kCodecThreads; ++other) {
      tile.is_finite &= tile.finite[other];
    }
  });
  const bool is_finite = tile.is_finite != 0;
  team.each([&](std::uint32_t thread) {
    if (input.residual == nullptr || !is_finite) return;
    for (std::uint32_t i = thread; i < input.count; i += kCodecThreads) {
      const float value = input.at(i);
      input.set_residual(i, value, value);
    }
  });
}

template <class Team>
__host__ __device__ void encode_largest(const Team& team, SparseTile& tile, const TileInput& input,
                                        std::uint32_t kept, std::byte* payload) {
  if (base::is_dense(input.count, kept)) {
    write_all(team, tile, input, payload);
    return;
  }
  find_least(team, tile, input, kept);
  write_largest(team, tile, input, kept, payload);
}

}  // namespace kolo::ops
