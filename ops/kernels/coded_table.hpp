#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "comm/gpu/gpu.hpp"

namespace kolo::ops {

inline constexpr std::uint32_t kCodecThreads = 256;  // threads of a GPU block
/// Small blocks of elements that a GPU block encodes or decodes at a time.
inline constexpr std::uint32_t kTileBlocks = 8;

/// Elements of a tile, the unit of work of a GPU block.
constexpr std::size_t tile_elements(const base::CodecFormat& format) {
  return format.is_sparse() ? format.block() : kTileBlocks * format.block();
}

/// The runs of one launch, passed to the kernel as its parameter. Each is cut into tiles.
struct CodedTable {
  static constexpr std::uint32_t kCapacity = 64;  // 3 KiB

  comm::CodedRun run[kCapacity] = {};
  std::uint64_t end[kCapacity] = {};  ///< tiles up to the end of this run
  std::uint32_t runs = 0;             ///< none is empty

  constexpr std::uint64_t tiles() const { return runs == 0 ? 0 : end[runs - 1]; }
};

/// A tile's elements in their run, and its payloads.
struct CodedPart {
  comm::CodedRun run;
  std::uint64_t first;
  std::uint32_t count;
  std::uint64_t payload;  ///< offset of the payloads in bytes
};

/// Removes as many runs from the front of `runs` as one table holds.
CodedTable take_coded_runs(std::span<const comm::CodedRun>& runs, const base::CodecFormat& format);

/// Tile `tile` of a run of `count` elements.
constexpr CodedPart part_at(const comm::CodedRun& run, const comm::DeviceCodec& codec,
                            std::uint64_t tile) {
  const std::uint64_t length = tile_elements(codec.format);
  const std::uint64_t first = tile * length;
  const std::uint64_t left = run.count - first;
  return {run, first, static_cast<std::uint32_t>(left < length ? left : length),
          first / codec.format.block() * codec.stride()};
}

/// Tile `tile` of all runs; less than `table.tiles()`.
constexpr CodedPart part_of(const CodedTable& table, const comm::DeviceCodec& codec,
                            std::uint64_t tile) {
  std::uint32_t which = 0;
  while (table.end[which] <= tile) ++which;
  return part_at(table.run[which], codec, tile - (which == 0 ? 0 : table.end[which - 1]));
}

/// Throw InvalidArgument for a type that is not floating, for elements that are not aligned, and
/// for payloads that do not begin at a 4-byte word.
void check_encoding(std::span<const comm::CodedRun> runs, DType from);
void check_decoding(std::span<const comm::CodedRun> runs, DType to);
void check_coded_inputs(const comm::CodedInputs& inputs);

}  // namespace kolo::ops
