#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <new>

#include <c10/core/Allocator.h>

namespace shard {

/// LibTorch's CPU allocator with a record of its live blocks: the elements of all tensors except
/// those over memory that others have allocated. It also records Kolo's buffers if ranks cannot
/// share memory: this file replaces the aligned `new` that allocates them. Thread-safe.
class Allocations final : public c10::Allocator {
 public:
  /// Makes all tensors of this process come from here. Call it once, before there are any. The
  /// result is never destroyed.
  static Allocations& install();

  c10::DataPtr allocate(std::size_t size_bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* target, const void* source, std::size_t size_bytes) const override;

  /// The blocks of live tensors: bytes by address.
  std::map<const std::byte*, std::size_t> blocks() const;
  /// The blocks of live buffers.
  std::map<const std::byte*, std::size_t> buffers() const;
  /// The bytes of both.
  std::size_t live_bytes() const;
  /// The peak of live_bytes() since the last call.
  std::size_t take_peak_bytes();

  // The replaced `new` and `delete`, which are also called before install().
  static void* new_buffer(std::size_t size_bytes, std::align_val_t alignment);
  static void delete_buffer(void* memory);

 private:
  using Blocks = std::map<const std::byte*, std::size_t>;

  Allocations() = default;
  void add(Blocks& blocks, const void* memory, std::size_t size_bytes);
  /// Ignores blocks that were allocated before install().
  void forget(Blocks& blocks, const void* memory);

  mutable std::mutex mutex_;
  Blocks blocks_;
  Blocks buffers_;
  std::size_t live_bytes_ = 0;
  std::size_t peak_bytes_ = 0;
};

}  // namespace shard
