#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "comm/gpu/gpu.hpp"

namespace kolo::runtime {

/// Scratch memory of a GPU for the operations of one stream. For the launching thread.
class DeviceStaging {
 public:
  explicit DeviceStaging(comm::Gpu& gpu) : gpu_(gpu) {}

  /// Returns places of these sizes in bytes, aligned for any kernel. Operations that were launched
  /// before may still use the same memory.
  template <std::size_t kPlaces>
  std::array<std::byte*, kPlaces> take(const std::array<std::size_t, kPlaces>& sizes) {
    std::size_t total = 0;
    for (const std::size_t size : sizes) total += rounded_up(size);
    reserve(total);
    std::array<std::byte*, kPlaces> places{};
    std::byte* next = block_.get();
    for (std::size_t i = 0; i < kPlaces; next += rounded_up(sizes[i++])) places[i] = next;
    return places;
  }

  /// Owners of memory that larger blocks have replaced; keep them until everything launched so far
  /// has completed.
  std::vector<std::shared_ptr<void>> take_outgrown() { return std::exchange(outgrown_, {}); }

 private:
  static constexpr std::size_t kAlignment = 256;

  static std::size_t rounded_up(std::size_t size) {
    return (size + kAlignment - 1) / kAlignment * kAlignment;
  }
  /// Grows by half at least: slowly growing tensors must not need a new block each time.
  void reserve(std::size_t bytes) {
    if (bytes <= bytes_) return;
    const std::size_t size = std::max(bytes, bytes_ + bytes_ / 2);
    std::shared_ptr<std::byte> larger = gpu_.allocate(size);
    if (block_ != nullptr) outgrown_.push_back(std::move(block_));
    block_ = std::move(larger);
    bytes_ = size;
  }

  comm::Gpu& gpu_;
  std::shared_ptr<std::byte> block_;
  std::size_t bytes_ = 0;
  std::vector<std::shared_ptr<void>> outgrown_;
};

}  // namespace kolo::runtime
