#include "shard/allocations.hpp"

#include <algorithm>
#include <cstdlib>
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
  if (memory != nullptr) add(blocks_, memory, size_bytes);
  return {memory, memory, raw_deleter(), c10::Device(c10::kCPU)};
}

c10::DeleterFnPtr Allocations::raw_deleter() const {
  return [](void* memory) {
    if (memory == nullptr) return;
    installed->forget(installed->blocks_, memory);
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

std::map<const std::byte*, std::size_t> Allocations::buffers() const {
  const std::lock_guard lock(mutex_);
  return buffers_;
}

std::size_t Allocations::live_bytes() const {
  const std::lock_guard lock(mutex_);
  return live_bytes_;
}

std::size_t Allocations::take_peak_bytes() {
  const std::lock_guard lock(mutex_);
  return std::exchange(peak_bytes_, live_bytes_);
}

void* Allocations::new_buffer(std::size_t size_bytes, std::align_val_t alignment) {
  const auto unit = static_cast<std::size_t>(alignment);
  void* const memory = std::aligned_alloc(unit, (size_bytes + unit - 1) / unit * unit);
  if (memory == nullptr) throw std::bad_alloc();
  if (installed != nullptr) installed->add(installed->buffers_, memory, size_bytes);
  return memory;
}

void Allocations::delete_buffer(void* memory) {
  if (memory == nullptr) return;
  if (installed != nullptr) installed->forget(installed->buffers_, memory);
  std::free(memory);
}

void Allocations::add(Blocks& blocks, const void* memory, std::size_t size_bytes) {
  const std::lock_guard lock(mutex_);
  blocks.emplace(static_cast<const std::byte*>(memory), size_bytes);
  live_bytes_ += size_bytes;
  peak_bytes_ = std::max(peak_bytes_, live_bytes_);
}

void Allocations::forget(Blocks& blocks, const void* memory) {
  const std::lock_guard lock(mutex_);
  const auto block = blocks.find(static_cast<const std::byte*>(memory));
  if (block == blocks.end()) return;
  live_bytes_ -= block->second;
  blocks.erase(block);
}

}  // namespace shard

void* operator new(std::size_t size_bytes, std::align_val_t alignment) {
  return shard::Allocations::new_buffer(size_bytes, alignment);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  shard::Allocations::delete_buffer(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  shard::Allocations::delete_buffer(memory);
}
