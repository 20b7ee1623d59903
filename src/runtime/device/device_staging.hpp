#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "comm/gpu/gpu.hpp"

namespace kolo::runtime {

/// Scratch memory of a GPU for the operations of one stream.
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
    std::byte* next = memory_.get();
    for (std::size_t i = 0; i < kPlaces; next += rounded_up(sizes[i++])) places[i] = next;
    return places;
  }

  /// Returns the blocks that larger ones have replaced since the last call; launched work may still
  /// use them.
  std::vector<std::shared_ptr<std::byte>> take_outgrown() { return std::exchange(outgrown_, {}); }

 private:
  static constexpr std::size_t kAlignment = 256;

  static std::size_t rounded_up(std::size_t size) {
    return (size + kAlignment - 1) / kAlignment * kAlignment;
  }

  void reserve(std::size_t bytes) {
    if (bytes <= bytes_) return;
    if (memory_ != nullptr) outgrown_.push_back(std::move(memory_));
    bytes_ = std::max(bytes,
                      bytes_ + bytes_ / 2);  // tensors that grow slowly must not cost a block each
    memory_ = gpu_.allocate(bytes_);
  }

  comm::Gpu& gpu_;
  std::shared_ptr<std::byte> memory_;
  std::size_t bytes_ = 0;
  std::vector<std::shared_ptr<std::byte>> outgrown_;
};

}  // namespace kolo::runtime
