#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "kolo/algorithm.hpp"

namespace kolo::ops {

/// A run of elements.
struct Range {
  std::size_t begin = 0;
  std::size_t length = 0;
};

/// Piece `which` of `count` elements cut into `pieces` of almost equal length; the first ones are
/// longer if `count` is not divisible. Pieces begin at multiples of `unit` elements and may be
/// empty.
inline Range piece_of(std::size_t count, int pieces, int which, std::size_t unit = 1) {
  const auto parts = static_cast<std::size_t>(pieces);
  const auto index = static_cast<std::size_t>(which);
  const std::size_t units = (count + unit - 1) / unit;
  const std::size_t begin = units / parts * index + std::min(index, units % parts);
  const std::size_t length = units / parts + (index < units % parts ? 1 : 0);
  const std::size_t first = std::min(begin * unit, count);
  return {first, std::min((begin + length) * unit, count) - first};
}

/// All pieces of `count` elements, cut as by `piece_of`.
inline std::vector<Range> pieces_of(std::size_t count, int pieces, std::size_t unit = 1) {
  std::vector<Range> all;
  for (int which = 0; which < pieces; ++which) {
    all.push_back(piece_of(count, pieces, which, unit));
  }
  return all;
}

/// Consecutive ranges of these lengths.
inline std::vector<Range> ranges_of(std::span<const std::size_t> lengths) {
  std::vector<Range> ranges;
  std::size_t begin = 0;
  for (const std::size_t length : lengths) {
    ranges.push_back({begin, length});
    begin += length;
  }
  return ranges;
}

inline std::size_t longest_of(std::span<const Range> ranges) {
  std::size_t longest = 0;
  for (const Range& range : ranges) longest = std::max(longest, range.length);
  return longest;
}

/// The number of segments of at most `segment` elements in `length` elements.
inline std::size_t segment_count(std::size_t length, std::size_t segment) {
  return (length + segment - 1) / segment;
}

/// Segment `which` of `whole`; empty after its end.
inline Range segment_of(Range whole, std::size_t segment, std::size_t which) {
  const std::size_t offset = std::min(segment * which, whole.length);
  return {whole.begin + offset, std::min(segment, whole.length - offset)};
}

/// The type in which elements are combined and moved.
inline DType wire_dtype(const CollectiveCall& call) {
  return call.compressor == nullptr ? call.dtype : call.compressor->wire_dtype(call.dtype);
}

/// Elements in the longest message or chunk of `call`.
inline std::size_t segment_length(const CollectiveCall& call) {
  return call.segment_bytes / size_of(call.dtype);
}

/// The bytes of `range` in a buffer of the call's type.
inline std::span<const std::byte> bytes_of(const CollectiveCall& call, const std::byte* buffer,
                                           Range range) {
  const std::size_t element = size_of(call.dtype);
  return {buffer + range.begin * element, range.length * element};
}
inline std::span<std::byte> bytes_of(const CollectiveCall& call, std::byte* buffer, Range range) {
  const std::size_t element = size_of(call.dtype);
  return {buffer + range.begin * element, range.length * element};
}

}  // namespace kolo::ops
