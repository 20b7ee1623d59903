#pragma once

#include <cstddef>
#include <span>

#pragma GCC visibility push(default)  // libkolo.so uses it
namespace kolo::comm {

/// Parts of several shared mappings, adjacent in one range of addresses. Writes to a part are
/// visible in its mapping, and vice versa.
class JoinedMapping {
 public:
  /// Sizes, offsets and `memory` are multiples of the page size.
  struct Part {
    std::byte* memory;  ///< of a shared mapping of this process
    std::size_t size_bytes;
    std::size_t offset;  ///< in the range
  };

  /// The mappings may be unmapped afterwards; bytes between parts must not be accessed. Throws
  /// BackendError.
  JoinedMapping(std::size_t size_bytes, std::span<const Part> parts);
  JoinedMapping(const JoinedMapping&) = delete;  // unmapped once
  JoinedMapping& operator=(const JoinedMapping&) = delete;
  ~JoinedMapping();

  std::byte* data() const { return static_cast<std::byte*>(memory_); }

 private:
  std::size_t size_bytes_;
  void* memory_;
};

}  // namespace kolo::comm
#pragma GCC visibility pop
