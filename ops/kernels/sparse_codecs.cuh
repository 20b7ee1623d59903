// How the threads of one GPU block encode, decode and add up a block of top_k or random_k. Nothing
// here needs a GPU: the test runs the same code on the CPU.
//
// The elements are read several times, from the cache: their 64 KiB do not fit into the shared
// memory of every GPU.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "ops/kernels/coded_elements.cuh"

namespace kolo::ops {

// --- top_k ---

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

/// Elements above the least one that is sent, and those of its magnitude.
struct SentCount {
  std::uint32_t larger;
  std::uint32_t equal;

  __host__ __device__ void operator+=(SentCount other) {
    larger += other.larger;
    equal += other.equal;
  }
};

/// The shared memory of a GPU block.
struct SparseTile {
  std::uint32_t bins[kBins];
  std::uint32_t groups[kCodecThreads];
  std::uint32_t rows[kRows];
  SentCount sent[kCodecThreads];  // by thread
  SentCount sent_rows[kRows];
  std::uint32_t least;     // known digits of the magnitude of the least one
  std::uint32_t ties;      // how many elements with these digits are sent
  std::uint32_t infinite;  // how many elements are not finite
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

/// Adds up the threads' counts in rows.
template <class Team, class Count>
__host__ __device__ void add_up_rows(const Team& team, const Count (&counts)[kCodecThreads],
                                     Count (&rows)[kRows]) {
  team.each([&](std::uint32_t thread) {
    if (thread >= kRows) return;
    Count sum{};
    for (std::uint32_t i = 0; i < kRowThreads; ++i) sum += counts[thread * kRowThreads + i];
    rows[thread] = sum;
  });
}

/// Adds up bins in groups, and groups in rows.
template <class Team>
__host__ __device__ void add_up_bins(const Team& team, SparseTile& tile) {
  team.each([&](std::uint32_t thread) {
    std::uint32_t sum = 0;
    for (std::uint32_t i = 0; i < kGroupBins; ++i) sum += tile.bins[thread * kGroupBins + i];
    tile.groups[thread] = sum;
  });
  add_up_rows(team, tile.groups, tile.rows);
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
  on_one_thread(team, [&] {
    tile.least = 0;
    tile.ties = kept;
  });
  std::uint32_t known = 0;  // mask of the digits that are decided
  for (std::uint32_t which = 0; which < kDigits; ++which) {
    const Digit digit = digit_at(which);
    const std::uint32_t mask = (1U << digit.bits) - 1;
    for_each(team, kBins, [&](std::uint32_t bin) { tile.bins[bin] = 0; });
    for_each(team, input.count, [&](std::uint32_t i) {
      const std::uint32_t bits = base::magnitude_bits(input.at(i));
      if ((bits & known) == tile.least) team.add(tile.bins[bits >> digit.shift & mask], 1);
    });
    add_up_bins(team, tile);
    on_one_thread(team, [&] {
      if (which == 0) {  // the first digit is the exponent and three bits more
        tile.infinite = 0;
        for (std::uint32_t bin = kBins - 8; bin < kBins; ++bin) tile.infinite += tile.bins[bin];
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
    SentCount sent{};
    for (std::uint32_t i = own.begin; i < own.end; ++i) {
      const std::uint32_t bits = base::magnitude_bits(input.at(i));
      sent += {bits > least ? 1U : 0U, bits == least ? 1U : 0U};
    }
    tile.sent[thread] = sent;
  });
  add_up_rows(team, tile.sent, tile.sent_rows);
}

/// The counts of all threads before `thread`.
__host__ __device__ inline SentCount sent_before(const SparseTile& tile, std::uint32_t thread) {
  const std::uint32_t row = thread / kRowThreads;
  SentCount sent{};
  for (std::uint32_t i = 0; i < row; ++i) sent += tile.sent_rows[i];
  for (std::uint32_t i = row * kRowThreads; i < thread; ++i) sent += tile.sent[i];
  return sent;
}

/// Writes the elements that are sent in the order of their places.
template <class Team>
__host__ __device__ void write_largest(const Team& team, SparseTile& tile, const TileInput& input,
                                       std::uint32_t kept, std::byte* payload) {
  count_sent(team, tile, input);
  const std::uint32_t least = tile.least;
  const std::uint32_t ties = tile.ties;
  const bool is_finite = tile.infinite == 0;
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
  on_one_thread(team, [&] { tile.infinite = 0; });
  for_each(team, input.count, [&](std::uint32_t i) {
    const float value = input.at(i);
    store_word(payload + i * sizeof(float), value);
    if (!base::is_finite(value)) team.add(tile.infinite, 1);
  });
  const bool has_residual = input.residual != nullptr && tile.infinite == 0;
  for_each(team, has_residual ? input.count : 0, [&](std::uint32_t i) {
    const float value = input.at(i);
    input.set_residual(i, value, value);
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

// --- random_k ---

/// Draws the seed of the places from the elements, writes it, and finds whether all are finite.
template <class Team>
__host__ __device__ void draw_seed(const Team& team, SparseTile& tile, const TileInput& input,
                                   std::byte* payload) {
  on_one_thread(team, [&] { tile.infinite = 0; });
  team.each([&](std::uint32_t thread) {
    std::uint64_t hash = 0;
    for (std::uint32_t i = thread; i < input.count; i += kCodecThreads) {
      const float value = input.at(i);
      hash += base::random_k_hash(value, i);
      if (!base::is_finite(value)) team.add(tile.infinite, 1);
    }
    tile.hashes[thread] = hash;
  });
  on_one_thread(team, [&] {
    std::uint64_t hash = 0;
    for (const std::uint64_t other : tile.hashes) hash += other;
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
  const bool is_finite = tile.infinite == 0;
  std::byte* const values = payload + sizeof seed;
  for_each(team, kept, [&](std::uint32_t i) {
    const std::size_t place = base::random_k_place(seed, i, input.count, kept);
    const float value = is_finite ? input.at(static_cast<std::uint32_t>(place))
                                  : std::numeric_limits<float>::quiet_NaN();
    store_word(values + i * sizeof(float), value);
  });
  if (input.residual == nullptr || !is_finite) return;
  // Everything first, then what was sent is taken away.
  for_each(team, input.count, [&](std::uint32_t i) { input.set_residual(i, input.at(i), 0.0F); });
  for_each(team, kept, [&](std::uint32_t i) {
    const std::size_t place = base::random_k_place(seed, i, input.count, kept);
    const float value = load_word(values + i * sizeof(float));
    input.set_residual(static_cast<std::uint32_t>(place), value, value);
  });
}

/// Calls `visit(place, value)` for all elements of a payload.
template <class Team, class Visit>
__host__ __device__ void visit_sparse(const Team& team, const base::CodecFormat& format, int terms,
                                      const std::byte* payload, std::uint32_t count,
                                      const Visit& visit) {
  const auto kept = static_cast<std::uint32_t>(format.kept(count, terms));
  if (format.is_random(terms)) {
    const auto low = std::bit_cast<std::uint32_t>(load_word(payload));
    const auto high = std::bit_cast<std::uint32_t>(load_word(payload + 4));
    const std::uint64_t seed = static_cast<std::uint64_t>(high) << 32 | low;
    for_each(team, kept, [&](std::uint32_t i) {
      visit(static_cast<std::uint32_t>(base::random_k_place(seed, i, count, kept)),
            load_word(payload + sizeof seed + i * sizeof(float)));
    });
  } else if (base::is_dense(count, kept)) {
    for_each(team, count,
             [&](std::uint32_t i) { visit(i, load_word(payload + i * sizeof(float))); });
  } else {
    for_each(team, kept,
             [&](std::uint32_t i) { visit(load_place(payload, i), load_value(payload, kept, i)); });
  }
}

template <class Team>
__host__ __device__ void decode_sparse(const Team& team, const base::CodecFormat& format, int terms,
                                       const TileOutput& output, const std::byte* payload) {
  for_each(team, output.count, [&](std::uint32_t i) { output.put(i, 0.0F); });
  visit_sparse(team, format, terms, payload, output.count,
               [&](std::uint32_t place, float value) { output.put(place, value); });
}

/// Sums in global memory, as each rank's elements have different places.
template <class Team>
__host__ __device__ void add_sparse(const Team& team, const base::CodecFormat& format,
                                    const TileSum& tile) {
  const std::uint32_t count = tile.part.count;
  float* const sum = tile.sum + tile.part.first;
  for_each(team, count, [&](std::uint32_t i) { sum[i] = 0.0F; });
  for (int rank = 0; rank < tile.inputs.ranks; ++rank) {
    if (tile.is_own(rank)) {
      for_each(team, count, [&](std::uint32_t i) { sum[i] += tile.own_at(i); });
    } else {
      visit_sparse(team, format, 1, tile.payloads(rank), count,
                   [&](std::uint32_t place, float value) { sum[place] += value; });
    }
  }
  if (tile.inputs.residual == nullptr) return;
  for_each(team, count, [&](std::uint32_t i) { tile.finish(i, sum[i]); });
}

}  // namespace kolo::ops
