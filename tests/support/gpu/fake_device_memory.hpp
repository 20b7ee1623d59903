#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "support/gpu/happens_before.hpp"

namespace kolo::test {

/// The memory of all ranks' GPUs, on the heap. Freed memory is overwritten but stays allocated, so
/// that a late operation damages nothing. Not thread-safe.
class FakeDeviceMemory {
 public:
  /// Memory of the given size, but at least one byte, filled with an implausible value.
  std::byte* allocate(int rank, std::size_t bytes);
  /// The block that `allocate` returned at this address.
  ByteRange block_at(const std::byte* begin) const;
  void poison(const std::byte* begin);
  /// An error text if `range` is not memory of the GPU of this rank, of any if null; otherwise
  /// empty.
  std::string problem_with(std::optional<int> rank, ByteRange range) const;

 private:
  struct Block {
    int rank;
    std::vector<std::byte> bytes;
  };

  std::map<const std::byte*, Block, std::less<>> blocks_;
};

}  // namespace kolo::test
