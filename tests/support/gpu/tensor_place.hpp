#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "comm/gpu/gpu.hpp"
#include "kolo/tensor_view.hpp"

namespace kolo::test {

/// Where a thread's test keeps its tensors, if not in its own memory.
class TensorPlace {
 public:
  virtual ~TensorPlace() = default;

  virtual Device device() const = 0;
  virtual std::shared_ptr<std::byte> allocate(std::size_t bytes) = 0;
  virtual void upload(std::span<const std::byte> from, std::byte* to) = 0;
  /// Runs after all work on the default stream.
  virtual void download(const std::byte* from, std::span<std::byte> to) = 0;
  /// The same behind the work on `stream`; only the download waits for it.
  virtual void upload_on(comm::DeviceStream stream, std::span<const std::byte> from,
                         std::byte* to) = 0;
  virtual void download_on(comm::DeviceStream stream, const std::byte* from,
                           std::span<std::byte> to) = 0;
};

/// Null: the test's own memory.
inline thread_local TensorPlace* tensor_place = nullptr;

/// Memory for a tensor at the constructing thread's TensorPlace, accessed through a copy.
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

  /// Downloads and returns the current content.
  const std::byte* look() const {
    if (placed_ != nullptr) place_->download(placed_.get(), host_);
    return host_.data();
  }
  /// The host copy, which put() uploads.
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
