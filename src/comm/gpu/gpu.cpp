#include "comm/gpu/gpu.hpp"

#include <atomic>
#include <exception>

#include "base/log.hpp"

namespace kolo::comm {
namespace {

std::atomic<void (*)()> release_cached{nullptr};

}  // namespace

void set_release_of_cached_memory(void (*release)()) { release_cached = release; }

void release_cached_memory() noexcept try {
  if (auto* const release = release_cached.load()) release();
} catch (const std::exception& error) {  // as while LibTorch captures a graph
  KOLO_LOG(Warn) << "memory that LibTorch caches could not be released: " << error.what();
}

}  // namespace kolo::comm
