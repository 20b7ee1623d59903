#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "support/gpu/happens_before.hpp"

namespace kolo::test {

/// The memory of all ranks' GPUs, on the heap. Freed memory stays allocated, with other values, so
/// that an operation that comes too late damages nothing. Not for several threads at a time.
class FakeDeviceMemory {
 public:
  /// Not initialised. Of the given size, and at least one byte.
  std::byte* allocate(int rank, std::size_t bytes);
  /// What `allocate` made there.
  ByteRange block_at(const std::byte* begin) const;
  void spoil(const std::byte* begin);
  /// Why `range` is not memory of this rank's GPU; empty if it is.
  std::string complaint(int rank, ByteRange range) const;

 private:
  struct Block {
    int rank;
    std::vector<std::byte> bytes;
  };

  std::map<const std::byte*, Block, std::less<>> blocks_;
};

}  // namespace kolo::test
