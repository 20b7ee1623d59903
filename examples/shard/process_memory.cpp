#include "shard/process_memory.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>  // defines __GLIBC__
#include <fstream>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <c10/core/CPUAllocator.h>

#include "kolo/collectives.hpp"
#include "kolo/runtime.hpp"

namespace shard {
namespace {

/// The value of a line such as "VmHWM:    123 kB" in a file of /proc/self, in bytes.
std::size_t bytes_of(const std::string& field, const char* file) {
  std::ifstream lines("/proc/self/" + std::string(file));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(field + ":")) return std::stoul(line.substr(field.size() + 1)) << 10;
  }
  throw std::runtime_error("/proc/self/" + std::string(file) + " has no " + field);
}

std::size_t malloc_bytes() {
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 33)
  const struct mallinfo2 info = ::mallinfo2();
  return info.uordblks + info.hblkhd;
#else
  return bytes_of("RssAnon", "status");
#endif
}

/// This rank's part of all segments that the ranks of its node have made for one another: files
/// without a name in /dev/shm, which each rank maps.
std::size_t segment_bytes() {
  std::size_t sum = 0;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find(" /dev/shm/#") == std::string::npos) continue;
    std::istringstream range(line);
    std::size_t begin = 0;
    std::size_t end = 0;
    char dash = 0;
    range >> std::hex >> begin >> dash >> end;
    sum += end - begin;
  }
  return sum / static_cast<std::size_t>(kolo::local_size());
}

constexpr std::chrono::milliseconds kPause(1);

/// LibTorch's CPU allocator, which notes the peak of bytes_in_use() whenever it allocates. Segments
/// are counted once a millisecond: it takes longer.
class PeakAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t size_bytes) override {
    c10::DataPtr data = c10::GetDefaultCPUAllocator()->allocate(size_bytes);
    note();
    return data;
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return c10::GetDefaultCPUAllocator()->raw_deleter();
  }
  void copy_data(void* target, const void* source, std::size_t size_bytes) const override {
    default_copy_data(target, source, size_bytes);
  }

  void note() {
    const std::lock_guard lock(mutex_);
    const auto now = std::chrono::steady_clock::now();
    if (now >= next_) {
      segments_ = segment_bytes();
      next_ = now + kPause;
    }
    peak_ = std::max(peak_, malloc_bytes() + segments_);
  }
  std::size_t peak() const { return std::max(peak_, bytes_in_use()); }

 private:
  std::mutex mutex_;
  std::chrono::steady_clock::time_point next_;
  std::size_t segments_ = 0;
  std::size_t peak_ = 0;
};

}  // namespace

std::size_t peak_during(const std::function<void()>& work) {
  PeakAllocator watch;
  c10::Allocator* const before = c10::GetCPUAllocator();
  c10::SetCPUAllocator(&watch);
  {
    // Kolo allocates segments and buffers without LibTorch.
    const std::jthread looks([&watch](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        watch.note();
        std::this_thread::sleep_for(kPause);
      }
    });
    work();
  }
  c10::SetCPUAllocator(before);
  return watch.peak();
}

std::size_t bytes_in_use() { return malloc_bytes() + segment_bytes(); }

std::size_t resident_bytes() {
#ifdef __GLIBC__
  ::malloc_trim(0);
#endif
  kolo::barrier();
  const std::size_t bytes =
      bytes_of("Pss_Anon", "smaps_rollup") + bytes_of("Pss_Shmem", "smaps_rollup");
  kolo::barrier();
  return bytes;
}

std::size_t growth_during(const std::function<void()>& work) {
  std::ofstream clear_refs("/proc/self/clear_refs");
  clear_refs << "5" << std::flush;
  if (!clear_refs) throw std::runtime_error("cannot write /proc/self/clear_refs");
  const std::size_t before = bytes_of("VmRSS", "status");
  work();
  return std::max(bytes_of("VmHWM", "status"), before) - before;
}

}  // namespace shard
