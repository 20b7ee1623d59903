#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "kolo/device.hpp"

namespace kolo::test {

/// The memory for the tensors of a thread's test, if not its own.
class TensorPlace {
 public:
  virtual ~TensorPlace() = default;

  virtual Device device() const = 0;
  virtual std::shared_ptr<std::byte> allocate(std::size_t bytes) = 0;
  virtual void upload(std::span<const std::byte> from, std::byte* to) = 0;
  /// After all that is on the default stream.
  virtual void download(const std::byte* from, std::span<std::byte> to) = 0;
};

/// Null: its own memory.
inline thread_local TensorPlace* tensor_place = nullptr;

/// Memory for tensors at the place of the constructing thread, accessed through a copy.
class PlacedMemory {
 public:
  void resize(std::size_t bytes) {
    host_.resize(bytes);
    if (place_ == nullptr) return;
    placed_ = place_->allocate(bytes);
    place_->upload(host_, placed_.get());
  }
  std::byte* data() { return placed_ != nullptr ? placed_.get() : host_.data(); }
  Device device() const { return place_ != nullptr ? place_->device() : Device{}; }

  /// The current content.
  const std::byte* look() const {
    if (placed_ != nullptr) place_->download(placed_.get(), host_);
    return host_.data();
  }
  /// The copy, which put() writes there.
  std::byte* host() { return host_.data(); }
  void put() {
    if (placed_ != nullptr) place_->upload(host_, placed_.get());
  }

 private:
  mutable std::vector<std::byte> host_;
  TensorPlace* place_ = tensor_place;
  std::shared_ptr<std::byte> placed_;
};

}  // namespace kolo::test
