#pragma once

#include <cstddef>
#include <string>

/// Facts about the machine that are found by experiment.
namespace bench {

/// The bytes per second that `threads` threads copy together, each between two buffers of `bytes`.
double copy_bytes_per_second(int threads, std::size_t bytes);

struct Space {
  std::size_t size_bytes;
  std::size_t free_bytes;
};

/// The space of the file system that holds shared memory; zeros if there is none.
Space shared_memory_space();

/// Why a process cannot create shared memory of `bytes` that another process can map; empty if it
/// can.
std::string why_no_window(std::size_t bytes);

/// Why two child processes cannot read each other's private memory, which lets one copy move a
/// message; empty if they can.
std::string why_no_single_copy();

}  // namespace bench
