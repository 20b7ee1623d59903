#pragma once

#include <cstddef>
#include <map>
#include <mutex>

#include <c10/core/Allocator.h>

namespace shard {

/// LibTorch's allocator of CPU memory, which also knows what it has given out: the elements of all
/// tensors but those over memory that somebody else has allocated. Any thread may use it.
class Allocations final : public c10::Allocator {
 public:
  /// Makes all tensors of this process come from here; to be called once, before there are any.
  /// What it returns is never destroyed.
  static Allocations& install();

  c10::DataPtr allocate(std::size_t size_bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* target, const void* source, std::size_t size_bytes) const override;

  /// What is allocated now: bytes by address.
  std::map<const std::byte*, std::size_t> blocks() const;
  std::size_t live_bytes() const;
  /// The most that was allocated at once since the last call.
  std::size_t take_peak_bytes();

 private:
  Allocations() = default;
  void forget(void* memory);

  mutable std::mutex mutex_;
  std::map<const std::byte*, std::size_t> blocks_;
  std::size_t live_bytes_ = 0;
  std::size_t peak_bytes_ = 0;
};

}  // namespace shard
