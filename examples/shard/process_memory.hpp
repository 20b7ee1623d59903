#pragma once

#include <cstddef>
#include <functional>
#include <map>

/// What the kernel says of this process's memory.
namespace shard {

/// The segments of shared memory that Kolo has made in this process: bytes by address. Those of
/// other ranks, mapped here too, are theirs.
std::map<const std::byte*, std::size_t> own_segments();

/// Of the segments of all ranks that are mapped here. It takes no look at their pages, so it is
/// quick.
std::size_t shared_segment_bytes();

/// The most resident memory of this process while `work` runs, less what was resident before it, in
/// bytes. The kernel's mark of the whole life's peak is set back first (Linux,
/// /proc/self/clear_refs).
std::size_t growth_during(const std::function<void()>& work);

/// Proportional set sizes: a page that k processes have in use counts a k-th in each.
struct Pss {
  std::size_t total = 0;
  std::size_t of_files = 0;  ///< programs and libraries
};
/// After the allocator has given back to the kernel what is free.
Pss trimmed_pss();

}  // namespace shard
