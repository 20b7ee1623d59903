#include "bench/workload/growing_buffer.hpp"

#include <cstring>
#include <new>
#include <utility>

namespace bench {
namespace {

constexpr std::align_val_t kPageBytes{4096};

std::shared_ptr<std::byte> allocate_written(std::size_t bytes) {
  std::shared_ptr<std::byte> memory(static_cast<std::byte*>(::operator new(bytes, kPageBytes)),
                                    [](std::byte* freed) { ::operator delete(freed, kPageBytes); });
  std::memset(memory.get(), 0, bytes);
  return memory;
}

}  // namespace

GrowingBuffer::GrowingBuffer() : GrowingBuffer(allocate_written) {}

GrowingBuffer::GrowingBuffer(Allocate allocate) : allocate_(std::move(allocate)) {}

std::byte* GrowingBuffer::reserve(std::size_t bytes) {
  if (bytes > size_bytes_) {
    size_bytes_ = 0;
    memory_.reset();
    memory_ = allocate_(bytes);
    size_bytes_ = bytes;
  }
  return memory_.get();
}

}  // namespace bench
