#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/file_descriptor.hpp"
#include "kolo/communicator.hpp"
#include "kolo/error.hpp"
#include "kolo/shared_window.hpp"
#include "kolo/task.hpp"

namespace kolo::comm {

/// The address of a segment of shared memory, and its identity. Its path consists of a process id
/// and a descriptor; in another PID namespace the same path leads to another file, or to this
/// process's own segment, without an error. The other fields detect that.
struct SegmentAddress {
  std::int32_t pid = 0;
  std::int32_t fd = 0;
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t size_bytes = 0;
  std::array<std::uint64_t, 2> key{};  ///< random, and written into the segment
};

/// A memory mapping; the destructor unmaps it.
class Mapping {
 public:
  /// Throws BackendError.
  Mapping(int fd, std::size_t size_bytes);
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&&) = delete;
  Mapping(const Mapping&) = delete;  // unmapped once
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();

  void leave_out_of_core_dumps() const;
  std::byte* data() const { return static_cast<std::byte*>(memory_); }

 private:
  void* memory_;
  std::size_t size_bytes_;
};

/// A segment of this process. It never has a name: a name from shm_open() would stay behind if the
/// process were killed before it unlinks it. Other processes can open the segment while `file` is
/// open. Its first page holds the key at kKeyOffset.
struct NewSegment {
  static constexpr std::size_t kKeyOffset = 64;

  FileDescriptor file;
  SegmentAddress address;
};

#pragma GCC visibility push(default)  // libkolo.so uses it
/// The size of this system's memory pages.
std::size_t page_bytes();
#pragma GCC visibility pop
/// The size of the pages that hold `bytes`, kLongestMemory at most.
std::size_t whole_pages(std::size_t bytes);

/// Reserves memory for a part of a segment, so that a full /dev/shm is an error here and not a
/// SIGBUS later. Returns 0 or the error's number.
int reserve(const FileDescriptor& file, std::size_t begin, std::size_t bytes);

/// Reserves memory for all of the segment, or its first `reserved_bytes`. Sizes are multiples of
/// the page size. Throws BackendError.
NewSegment make_segment(std::size_t size_bytes, std::size_t reserved_bytes);
inline NewSegment make_segment(std::size_t size_bytes) {
  return make_segment(size_bytes, size_bytes);
}

/// The address of a rank's segment, or the reason why there is none. Ranks exchange them, so that
/// the failure of one becomes the error of all.
struct Notice {
  SegmentAddress segment;
  std::array<char, 240> failure{};  ///< empty: success

  /// Runs `step`, and records its BackendError.
  template <class Step>
  void attempt(Step step) {
    try {
      step();
    } catch (const BackendError& error) {
      std::string(error.what()).copy(failure.data(), failure.size() - 1);
    }
  }
};

/// Throws BackendError if any rank has failed at `what`, with the text of the first. `all` is in
/// rank order.
void require_success(std::span<const Notice> all, const std::string& what = "shared memory");

/// Maps the segment. Throws BackendError, also if its path leads to another one.
Mapping open_segment(const SegmentAddress& address);

#pragma GCC visibility push(default)  // libkolo.so uses it
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
#pragma GCC visibility pop

/// Makes a window of POSIX shared memory among the ranks of `communicator`; see World::make_window.
/// Every rank makes its own segment (see make_segment), which the others open through
/// /proc/<pid>/fd. This requires the same PID namespace and user; otherwise the call fails.
Task make_posix_window(Communicator& communicator, int tag, std::size_t segment_bytes,
                       std::shared_ptr<SharedWindow>& window);

/// Makes a segment on every rank, without memory: together they are as long as the machine's, and
/// reserve() gives `file`, this rank's own, memory behind its first page. The other ranks can map
/// it while `file` is open.
Task make_empty_segments(Communicator& communicator, int tag, FileDescriptor& file,
                         std::vector<SegmentAddress>& segments);

/// A window of segments of equal size. Throws BackendError.
std::shared_ptr<SharedWindow> map_window(int rank, std::span<const SegmentAddress> segments);

}  // namespace kolo::comm
