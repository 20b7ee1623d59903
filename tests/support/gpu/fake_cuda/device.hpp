#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "support/gpu/fake_gpu_hub.hpp"

namespace kolo::test {

/// The number of devices that LibTorch sees, used or not: its autograd engine counts them only
/// once.
inline constexpr c10::DeviceIndex kFakeCudaDevices = 8;

/// A rank's GPU as LibTorch sees it: cuda:<rank>. Streams belong to the hub. A c10::StreamId is the
/// address of a stream, or 0 for the default stream. Thread-safe.
class FakeCudaDevice {
 public:
  FakeCudaDevice(std::shared_ptr<FakeGpuHub> hub, int rank);

  c10::Device device() const { return device_; }
  FakeGpuHub& hub() const { return *hub_; }
  int rank() const { return rank_; }

  /// The stream lives as long as this object, as LibTorch's streams live forever.
  c10::Stream new_stream();
  /// A stream from a small pool.
  c10::Stream pool_stream();

  /// These block the host, and are counted.
  void synchronize(comm::DeviceStream stream);
  void synchronize();
  void note_host_sync() { ++host_syncs_; }
  int host_syncs() const { return host_syncs_; }

 private:
  std::shared_ptr<FakeGpuHub> hub_;
  int rank_;
  c10::Device device_;
  std::atomic<int> host_syncs_{0};
  std::mutex lock_;
  std::vector<std::shared_ptr<CUstream_st>> streams_;
  std::vector<c10::Stream> pool_;
  std::size_t next_in_pool_ = 0;
};

/// Registers a device with LibTorch for the lifetime of this object; tensors may outlive it. One
/// object per rank at a time.
class FakeCudaAttachment {
 public:
  explicit FakeCudaAttachment(std::shared_ptr<FakeCudaDevice> device);
  FakeCudaAttachment(const FakeCudaAttachment&) = delete;  // destructor frees a table entry
  FakeCudaAttachment& operator=(const FakeCudaAttachment&) = delete;
  ~FakeCudaAttachment();

 private:
  c10::DeviceIndex index_;
};

bool has_fake_cuda_device(c10::DeviceIndex index);
/// Throws c10::Error if no rank has this device.
std::shared_ptr<FakeCudaDevice> fake_cuda_device(c10::Device device);

/// The calling thread's current device, as with CUDA.
c10::Device current_cuda_device();
c10::Stream current_cuda_stream(c10::Device device);

comm::DeviceStream native_stream(const c10::Stream& stream);
/// The random generator of this device, a CPU generator.
const at::Generator& cuda_generator(c10::DeviceIndex index);

}  // namespace kolo::test
