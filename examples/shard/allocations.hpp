#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <new>

#include <c10/core/Allocator.h>

namespace shard {

/// LibTorch's allocator of CPU memory, which also knows what it has given out: the elements of all
/// tensors but those over memory that somebody else has allocated. It knows the memory of Kolo's
/// buffers too, where ranks cannot share it: this file replaces the aligned `new` that they take it
/// from. Any thread may use it.
class Allocations final : public c10::Allocator {
 public:
  /// Makes all tensors of this process come from here; to be called once, before there are any.
  /// What it returns is never destroyed.
  static Allocations& install();

  c10::DataPtr allocate(std::size_t size_bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* target, const void* source, std::size_t size_bytes) const override;

  /// What tensors have now: bytes by address.
  std::map<const std::byte*, std::size_t> blocks() const;
  /// What buffers have.
  std::map<const std::byte*, std::size_t> buffers() const;
  /// Of both.
  std::size_t live_bytes() const;
  /// The most of both at once since the last call.
  std::size_t take_peak_bytes();

  // What the replaced `new` and `delete` do, even before there is one.
  static void* new_buffer(std::size_t size_bytes, std::align_val_t alignment);
  static void delete_buffer(void* memory);

 private:
  using Blocks = std::map<const std::byte*, std::size_t>;

  Allocations() = default;
  void add(Blocks& blocks, const void* memory, std::size_t size_bytes);
  /// Those that were allocated before it was installed are not known.
  void forget(Blocks& blocks, const void* memory);

  mutable std::mutex mutex_;
  Blocks blocks_;
  Blocks buffers_;
  std::size_t live_bytes_ = 0;
  std::size_t peak_bytes_ = 0;
};

}  // namespace shard
