#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "comm/file_descriptor.hpp"

namespace kolo::comm {

/// Where a segment of shared memory is, and which one is meant. Its path is made of a process
/// number and a descriptor; in another PID namespace the same path leads to another file, or to
/// this process's own segment, without an error. The rest tells them apart.
struct SegmentAddress {
  std::int32_t pid = 0;
  std::int32_t fd = 0;
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t size_bytes = 0;
  std::array<std::uint64_t, 2> key{};  ///< random, and written into the segment
};

/// A mapping, taken back by the destructor.
class Mapping {
 public:
  /// Throws BackendError.
  Mapping(int fd, std::size_t size_bytes);
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&&) = delete;
  Mapping(const Mapping&) = delete;  // it is taken back once
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();

  void leave_out_of_core_dumps() const;
  std::byte* data() const { return static_cast<std::byte*>(memory_); }

 private:
  void* memory_;
  std::size_t size_bytes_;
};

/// A segment of this process, which never has a name: one taken out of the file system right after
/// shm_open() is left there by a process that is killed in between. Others can open it as long as
/// `file` is open. Its first page has the key from kKeyOffset on.
struct NewSegment {
  static constexpr std::size_t kKeyOffset = 64;

  FileDescriptor file;
  SegmentAddress address;
};

/// Reserves all of the memory, so that a full /dev/shm is an error and no SIGBUS later.
/// `size_bytes`: whole pages. Throws BackendError.
NewSegment make_segment(std::size_t size_bytes);

/// Maps the segment that is meant. Throws BackendError, also where its path leads to another one.
Mapping open_segment(const SegmentAddress& address);

}  // namespace kolo::comm
