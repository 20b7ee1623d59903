#include "ops/steps/shares.hpp"

#include <utility>

namespace kolo::ops {
namespace {

/// The cache lines of a part, except at the end of a piece.
std::size_t part_lines(Range piece, std::size_t chunks, std::size_t line) {
  return segment_count(piece.length, line * chunks);
}

}  // namespace

Range Shares::part_of(Range piece, std::size_t chunks, std::size_t chunk,
                      std::size_t element_bytes) {
  const std::size_t line = kLineBytes / element_bytes;
  return segment_of(piece, part_lines(piece, chunks, line) * line, chunk);
}

Shares::Shares(std::vector<Range> pieces, std::size_t element_bytes, std::size_t slot_bytes)
    : pieces_(std::move(pieces)), element_bytes_(element_bytes) {
  const std::size_t line = kLineBytes / element_bytes;
  const std::size_t slot_lines = slot_bytes / kLineBytes;
  std::size_t lines = 0;
  for (const Range& piece : pieces_) lines += segment_count(piece.length, line);
  // If the chunks do not divide a piece, a part is up to one line longer than its share.
  chunks_ = segment_count(lines, lines <= slot_lines ? slot_lines : slot_lines - pieces_.size());
  std::size_t place = 0;
  for (const Range& piece : pieces_) {
    places_.push_back(place);
    if (chunks_ > 0) place += part_lines(piece, chunks_, line) * kLineBytes;
  }
}

}  // namespace kolo::ops
