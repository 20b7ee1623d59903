#pragma once

#include <cstddef>
#include <functional>

/// This process's memory, as it and the kernel count it.
namespace shard {

/// The bytes in use: what malloc has given out, to LibTorch, Kolo and all others, and this rank's
/// part of the segments that the ranks of its node share.
std::size_t bytes_in_use();

/// The peak of bytes_in_use() while `work` runs, as seen every millisecond and whenever LibTorch
/// allocates a tensor.
std::size_t peak_during(const std::function<void()>& work);

/// The kernel's count of this process's private memory and its part of shared memory, in bytes: a
/// page that k processes use counts 1/k in each. Programs and libraries do not count. First returns
/// free memory to the kernel. Collective: all ranks pause, since a shared page counts on those that
/// have touched it.
std::size_t resident_bytes();

/// The growth of this process's peak resident memory while `work` runs, in bytes. First resets the
/// kernel's record of the peak (Linux, /proc/self/clear_refs).
std::size_t growth_during(const std::function<void()>& work);

}  // namespace shard
