#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "comm/gpu/gpu.hpp"
#include "kolo/dtype.hpp"

namespace kolo::ops {

/// The runs of one launch, passed to the kernel as its parameter. Their elements, one run after
/// another, are cut into shares, one per GPU block.
///
/// The kernel uses the functions below on the GPU, tests use them on the CPU.
struct ConvertTable {
  /// 6 KiB of the 32 KiB that parameters may take. Every launch copies the whole table.
  static constexpr std::uint32_t kCapacity = 256;

  const std::byte* from[kCapacity] = {};
  std::byte* to[kCapacity] = {};
  std::uint64_t end[kCapacity] = {};  ///< elements up to the end of this run
  std::uint32_t runs = 0;             ///< none is empty
  std::uint64_t share = 1;            ///< elements per block; the last one has the remainder

  constexpr std::uint64_t elements() const { return runs == 0 ? 0 : end[runs - 1]; }
  constexpr std::uint64_t blocks() const { return (elements() + share - 1) / share; }
};

/// Removes as many runs from the front of `runs` as one table holds. Cuts them into about `blocks`
/// equal shares, fewer if there are few elements.
ConvertTable take_runs(std::span<const comm::DeviceRun>& runs, std::uint64_t blocks);

/// The run that holds element `position`, which is less than `table.elements()`.
constexpr std::uint32_t find_run(const ConvertTable& table, std::uint64_t position) {
  std::uint32_t first = 0;
  std::uint32_t last = table.runs - 1;
  while (first < last) {
    const std::uint32_t middle = (first + last) / 2;
    if (table.end[middle] > position) {
      last = middle;
    } else {
      first = middle + 1;
    }
  }
  return first;
}

/// Calls `work(run, begin, count)` for all pieces of `block`'s share: `count` elements of run `run`
/// from element `begin` on.
template <class Work>
constexpr void for_each_piece(const ConvertTable& table, std::uint64_t block, Work work) {
  std::uint64_t position = block * table.share;
  std::uint64_t block_end = position + table.share;
  if (block_end > table.elements()) block_end = table.elements();
  if (position >= block_end) return;
  for (std::uint32_t run = find_run(table, position); position < block_end; ++run) {
    const std::uint64_t run_begin = run == 0 ? 0 : table.end[run - 1];
    const std::uint64_t piece_end = table.end[run] < block_end ? table.end[run] : block_end;
    work(run, position - run_begin, piece_end - position);
    position = piece_end;
  }
}

/// The number of elements before the first one that is aligned to `width` elements on both sides:
/// less than `width`, or `count` if there is none. Addresses must be aligned to elements.
constexpr std::uint64_t elements_before_vectors(std::uint64_t from, std::uint64_t from_size,
                                                std::uint64_t to, std::uint64_t to_size,
                                                std::uint64_t width, std::uint64_t count) {
  const std::uint64_t from_place = from / from_size % width;
  if (from_place != to / to_size % width) return count;
  const std::uint64_t before = (width - from_place) % width;
  return before < count ? before : count;
}

/// Whether the GPU has a kernel for this pair of types: the same type, floating types among
/// themselves, integers and Bool to and from Int64, and Int16 to and from Int32. Complex types have
/// none.
constexpr bool is_convertible_on_gpu(DType from, DType to) {
  if (is_complex(from) || is_complex(to)) return false;
  if (from == to) return true;
  if (is_floating(from) || is_floating(to)) return is_floating(from) && is_floating(to);
  if (from == DType::Int64 || to == DType::Int64) return true;
  return (from == DType::Int16 && to == DType::Int32) ||
         (from == DType::Int32 && to == DType::Int16);
}

/// Throws InvalidArgument for a conversion without a kernel, and for runs that are not aligned to
/// their elements.
void check_conversion(std::span<const comm::DeviceRun> runs, comm::DeviceConversion conversion);

}  // namespace kolo::ops
