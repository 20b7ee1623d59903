#pragma once

#include <cstddef>
#include <functional>
#include <map>

/// The kernel's view of this process's memory.
namespace shard {

/// The segments of shared memory that Kolo has made in this process, without those of other ranks
/// that are mapped here: bytes by address.
std::map<const std::byte*, std::size_t> own_segments();

/// The size of all ranks' segments that are mapped here. It does not visit their pages, so it is
/// fast.
std::size_t shared_segment_bytes();

/// The growth of this process's peak resident memory while `work` runs, in bytes. First resets the
/// kernel's record of the peak (Linux, /proc/self/clear_refs).
std::size_t growth_during(const std::function<void()>& work);

/// Proportional set sizes: a page that k processes use counts 1/k in each.
struct Pss {
  std::size_t total = 0;
  std::size_t of_files = 0;  ///< programs and libraries
};
/// The sizes after the allocator has returned free memory to the kernel.
Pss trimmed_pss();

}  // namespace shard
