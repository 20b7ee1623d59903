#pragma once

#include <cstddef>
#include <functional>
#include <memory>

namespace bench {

/// Memory of one rank that grows on demand.
class GrowingBuffer {
 public:
  using Allocate = std::function<std::shared_ptr<std::byte>(std::size_t bytes)>;

  /// Private CPU memory, aligned to 4096 bytes; every page has been written.
  GrowingBuffer();
  explicit GrowingBuffer(Allocate allocate);

  /// At least `bytes` of memory. Frees the current memory unless it is large enough.
  std::byte* reserve(std::size_t bytes);

  std::byte* data() const { return memory_.get(); }
  std::size_t size_bytes() const { return size_bytes_; }

 private:
  Allocate allocate_;
  std::shared_ptr<std::byte> memory_;
  std::size_t size_bytes_ = 0;
};

}  // namespace bench
