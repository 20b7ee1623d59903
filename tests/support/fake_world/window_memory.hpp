#pragma once

#include <cerrno>
#include <cstddef>
#include <limits>
#include <new>
#include <string>
#include <sys/mman.h>
#include <system_error>
#include <unistd.h>

namespace kolo::test {

/// Zeroed memory for the segments of a fake window. The system provides a page when it is first
/// touched: tests make thousands of windows and use a few bytes of most, and ThreadSanitizer would
/// note down every byte that an allocator hands out. Accesses past the end fail.
class WindowMemory {
 public:
  /// @param size_bytes a multiple of the alignment that `data()` needs
  explicit WindowMemory(std::size_t size_bytes) {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    if (size_bytes > std::numeric_limits<std::size_t>::max() - 2 * page) throw std::bad_alloc();
    const std::size_t used_bytes = (size_bytes + page - 1) / page * page;
    mapped_bytes_ = used_bytes + page;
    mapping_ =
        ::mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping_ == MAP_FAILED) fail("mmap");
    data_ = static_cast<std::byte*>(mapping_) + (used_bytes - size_bytes);
    if (::mprotect(data_ + size_bytes, page, PROT_NONE) != 0) {
      const int error = errno;
      ::munmap(mapping_, mapped_bytes_);
      errno = error;
      fail("mprotect");
    }
  }
  WindowMemory(const WindowMemory&) = delete;  // unmapped once
  WindowMemory& operator=(const WindowMemory&) = delete;
  ~WindowMemory() { ::munmap(mapping_, mapped_bytes_); }

  std::byte* data() const { return data_; }

 private:
  [[noreturn]] void fail(const char* call) const {
    throw std::system_error(errno, std::generic_category(),
                            std::string(call) + " " + std::to_string(mapped_bytes_) + " bytes");
  }

  std::size_t mapped_bytes_;
  void* mapping_;
  std::byte* data_;
};

}  // namespace kolo::test
