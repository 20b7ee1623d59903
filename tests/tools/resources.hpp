#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <malloc.h>
#include <string>
#include <unistd.h>

#include "kolo/runtime.hpp"

namespace kolo::test {

/// What this process holds.
struct Resources {
  std::int64_t allocated_bytes = 0;  ///< by malloc, in all of its arenas
  std::int64_t resident_bytes = 0;
  std::int64_t mappings = 0;
  std::int64_t shared_mappings = 0;  ///< those of /dev/shm
  std::int64_t descriptors = 0;
  std::int64_t threads = 0;

  static Resources now() {
    Resources resources;
    const struct mallinfo2 allocated = ::mallinfo2();
    resources.allocated_bytes = static_cast<std::int64_t>(allocated.uordblks + allocated.hblkhd);
    std::ifstream statm("/proc/self/statm");
    std::int64_t total = 0;
    statm >> total >> resources.resident_bytes;
    resources.resident_bytes *= ::sysconf(_SC_PAGESIZE);
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      ++resources.mappings;
      if (line.find(" /dev/shm/") != std::string::npos) ++resources.shared_mappings;
    }
    resources.descriptors = entries_of("/proc/self/fd");
    resources.threads = entries_of("/proc/self/task");
    return resources;
  }

  void print(const char* what, std::int64_t cycles, int rank) const {
    std::printf(
        "%8lld %s: %10.1f KiB allocated, %10.1f KiB resident, %lld mappings, "
        "%lld descriptors, %lld threads on rank %d\n",
        static_cast<long long>(cycles), what, static_cast<double>(allocated_bytes) / 1024.0,
        static_cast<double>(resident_bytes) / 1024.0, static_cast<long long>(mappings),
        static_cast<long long>(descriptors), static_cast<long long>(threads), rank);
  }

 private:
  static std::int64_t entries_of(const char* folder) {
    using Entries = std::filesystem::directory_iterator;
    return std::distance(Entries(folder), Entries());
  }
};

/// Settings with a table of known requests that is full at once: what it holds is bounded, and not
/// what is looked for.
inline InitOptions with_small_table() {
  InitOptions options;
  options.config.tuning.table_capacity = 64;
  return options;
}

/// Repeats `cycle` and prints every tenth what the process holds. True if the second half has added
/// nothing: in the first, pages are touched for the first time, and allocators open their arenas.
/// A page may still be touched late, so what is resident says little; what malloc has handed out is
/// exact but for what its threads cache.
template <class Cycle>
bool is_flat(const char* what, std::int64_t cycles, int rank, Cycle cycle,
             std::int64_t bytes_a_cycle = 64) {
  constexpr std::int64_t kNoiseAllocated = 64 << 10;
  constexpr std::int64_t kNoiseResident = 4 << 20;
  constexpr std::int64_t kNoiseMappings = 8;  // of the allocator's arenas
  Resources at_half;
  Resources last;
  for (int tenth = 1; tenth <= 10; ++tenth) {
    for (std::int64_t i = 0; i < cycles / 10; ++i) cycle();
    last = Resources::now();
    last.print(what, cycles / 10 * tenth, rank);
    if (tenth == 5) at_half = last;
  }
  const std::int64_t spare = bytes_a_cycle * cycles / 2;
  return last.allocated_bytes - at_half.allocated_bytes <= spare + kNoiseAllocated &&
         last.resident_bytes - at_half.resident_bytes <= spare + kNoiseResident &&
         last.mappings - at_half.mappings <= kNoiseMappings &&
         last.shared_mappings <= at_half.shared_mappings &&
         last.descriptors <= at_half.descriptors && last.threads <= at_half.threads;
}

}  // namespace kolo::test
