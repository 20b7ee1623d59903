#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "comm/gpu/device_communicator.hpp"
#include "comm/gpu/gpu.hpp"
#include "runtime/data/reduction_items.hpp"
#include "runtime/device/device_staging.hpp"

namespace kolo::runtime {

/// Estimates the bytes that a rank sends to other GPUs, which NCCL does not report: the average
/// over the ranks of a ring.
class RingTraffic {
 public:
  explicit RingTraffic(int size) : size_(static_cast<std::uint64_t>(size)) {}

  /// Once around the ring: an all-gather, a reduce-scatter, a broadcast.
  void add_round(std::size_t bytes) { bytes_ += bytes * (size_ - 1) / size_; }
  void add_sent(std::size_t bytes) { bytes_ += bytes; }

  std::uint64_t bytes() const { return bytes_; }

 private:
  std::uint64_t size_;
  std::uint64_t bytes_ = 0;
};

/// A lane's resources on its GPU, for one stream, which orders the uses of the staging memory.
struct DevicePath {
  comm::Gpu& gpu;
  comm::DeviceCommunicator& communicator;
  comm::DeviceStream stream;
  RingTraffic& traffic;
  DeviceStaging& staging;
};

std::size_t sum_of(std::span<const std::size_t> counts);
/// Elements of all items.
std::size_t count_of(std::span<const ReductionItem> items);

/// Copies bytes to other memory of the GPU.
void copy(const DevicePath& path, std::span<const std::byte> from, std::byte* to);
/// Converts the inputs of all items into `buffer`, one after another.
void pack(const DevicePath& path, std::span<const ReductionItem> items,
          comm::DeviceConversion conversion, std::byte* buffer);
/// Converts `buffer` into the outputs of all items.
void unpack(const DevicePath& path, const std::byte* buffer, comm::DeviceConversion conversion,
            std::span<const ReductionItem> items);

}  // namespace kolo::runtime
