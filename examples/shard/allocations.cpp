#include "shard/allocations.hpp"

#include <algorithm>
#include <utility>

#include <c10/core/CPUAllocator.h>

namespace shard {
namespace {

Allocations* installed = nullptr;

}  // namespace

Allocations& Allocations::install() {
  installed = new Allocations;  // tensors outlive main()
  c10::SetCPUAllocator(installed, /*priority=*/1);
  return *installed;
}

c10::DataPtr Allocations::allocate(std::size_t size_bytes) {
  void* const memory = c10::GetDefaultCPUAllocator()->raw_allocate(size_bytes);
  if (memory != nullptr) {
    const std::lock_guard lock(mutex_);
    blocks_.emplace(static_cast<const std::byte*>(memory), size_bytes);
    live_bytes_ += size_bytes;
    peak_bytes_ = std::max(peak_bytes_, live_bytes_);
  }
  return {memory, memory, raw_deleter(), c10::Device(c10::kCPU)};
}

c10::DeleterFnPtr Allocations::raw_deleter() const {
  return [](void* memory) {
    if (memory == nullptr) return;
    installed->forget(memory);
    c10::GetDefaultCPUAllocator()->raw_deallocate(memory);
  };
}

void Allocations::copy_data(void* target, const void* source, std::size_t size_bytes) const {
  default_copy_data(target, source, size_bytes);
}

std::map<const std::byte*, std::size_t> Allocations::blocks() const {
  const std::lock_guard lock(mutex_);
  return blocks_;
}

std::size_t Allocations::live_bytes() const {
  const std::lock_guard lock(mutex_);
  return live_bytes_;
}

std::size_t Allocations::take_peak_bytes() {
  const std::lock_guard lock(mutex_);
  return std::exchange(peak_bytes_, live_bytes_);
}

void Allocations::forget(void* memory) {
  const std::lock_guard lock(mutex_);
  const auto block = blocks_.find(static_cast<const std::byte*>(memory));
  live_bytes_ -= block->second;
  blocks_.erase(block);
}

}  // namespace shard
