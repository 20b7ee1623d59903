#pragma once

#include <cstddef>
#include <string>

/// What can be found out about a machine by trying.
namespace bench {

/// Bytes that `threads` threads together copy in a second, each between two buffers of `bytes`.
double copy_bytes_per_second(int threads, std::size_t bytes);

struct Space {
  std::size_t size_bytes;
  std::size_t free_bytes;
};

/// Of the file system that shared memory lies in; zeros where there is none.
Space shared_memory_space();

/// Whether a process can make shared memory of `bytes`, and one beside it reach that: empty, or why
/// not.
std::string why_no_window(std::size_t bytes);

/// Whether two processes that a third one has started can read each other's private memory, so that
/// one copy is enough to move it: empty, or why not.
std::string why_no_single_copy();

}  // namespace bench
