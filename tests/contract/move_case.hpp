#pragma once

// Common parts of the contracts of all-gather, broadcast and all-to-all, which only move bytes.

#include <cstddef>
#include <ostream>
#include <vector>

#include "contract/reference.hpp"
#include "kolo/dtype.hpp"

namespace kolo::test {

struct MoveCase {
  DType dtype = DType::Int16;
  std::size_t segment_bytes = 64;
  bool in_place = false;
  std::size_t offset = 0;  ///< elements between an aligned address and the buffers
};

inline std::ostream& operator<<(std::ostream& out, const MoveCase& item) {
  return out << name_of(item.dtype) << ", segments of " << item.segment_bytes << " bytes, offset "
             << item.offset << (item.in_place ? ", in place" : "");
}

/// The bytes that `from` sends to `to`: different for every pair of ranks and every position.
inline std::vector<std::byte> bytes_between(std::size_t from, std::size_t to, std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) {
    bytes[i] = static_cast<std::byte>((from * 101 + to * 37 + i * 7 + i / 239) % 239);
  }
  return bytes;
}

inline void append(std::vector<std::byte>& to, const std::vector<std::byte>& bytes) {
  to.insert(to.end(), bytes.begin(), bytes.end());
}

/// Every type and segment length, in place or not, at several offsets of the buffers.
inline std::vector<MoveCase> every_move(bool in_place) {
  std::vector<MoveCase> cases;
  for (const DType dtype : kAllDTypes) cases.push_back({dtype, 64, in_place, 0});
  for (const std::size_t segment_bytes : {128u, 192u, 4096u}) {
    cases.push_back({DType::Float32, segment_bytes, in_place, 3});
    cases.push_back({DType::UInt8, segment_bytes, in_place, 5});
  }
  return cases;
}

}  // namespace kolo::test
