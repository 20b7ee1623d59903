#include "support/gpu/fake_cuda/device.hpp"

#include <array>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include "support/gpu/fake_cuda/install.hpp"

namespace kolo::test {
namespace {

constexpr std::size_t kPoolStreams = 4;

struct Table {
  std::mutex lock;
  std::array<std::shared_ptr<FakeCudaDevice>, kFakeCudaDevices> devices;
};

Table& table() {
  static Table instance;
  return instance;
}

/// Runs before main: LibTorch looks for CUDA only once, when it may first need it.
[[maybe_unused]] const bool is_installed = [] {
  install_fake_cuda();
  return true;
}();

}  // namespace

FakeCudaDevice::FakeCudaDevice(std::shared_ptr<FakeGpuHub> hub, int rank)
    : hub_(std::move(hub)), rank_(rank), device_(c10::kCUDA, static_cast<c10::DeviceIndex>(rank)) {
  TORCH_CHECK(rank < kFakeCudaDevices, "the fake CUDA has ", kFakeCudaDevices, " devices");
}

c10::Stream FakeCudaDevice::new_stream() {
  std::shared_ptr<CUstream_st> stream = hub_->make_stream(rank_);
  const auto id = reinterpret_cast<c10::StreamId>(stream.get());
  const std::lock_guard guard(lock_);
  streams_.push_back(std::move(stream));
  return c10::Stream(c10::Stream::UNSAFE, device_, id);
}

c10::Stream FakeCudaDevice::pool_stream() {
  {
    const std::lock_guard guard(lock_);
    if (pool_.size() == kPoolStreams) return pool_[next_in_pool_++ % kPoolStreams];
  }
  const c10::Stream stream = new_stream();
  const std::lock_guard guard(lock_);
  pool_.push_back(stream);
  return stream;
}

void FakeCudaDevice::synchronize(comm::DeviceStream stream) {
  note_host_sync();
  hub_->synchronize(rank_, stream);
}

void FakeCudaDevice::synchronize() {
  note_host_sync();
  hub_->synchronize_device(rank_);
}

FakeCudaAttachment::FakeCudaAttachment(std::shared_ptr<FakeCudaDevice> device)
    : index_(device->device().index()) {
  const std::lock_guard guard(table().lock);
  std::shared_ptr<FakeCudaDevice>& place = table().devices[static_cast<std::size_t>(index_)];
  TORCH_CHECK(place == nullptr, "another rank has cuda:", index_, " already");
  place = std::move(device);
}

FakeCudaAttachment::~FakeCudaAttachment() {
  const std::lock_guard guard(table().lock);
  table().devices[static_cast<std::size_t>(index_)].reset();
}

bool has_fake_cuda_device(c10::DeviceIndex index) {
  const std::lock_guard guard(table().lock);
  return index >= 0 && index < kFakeCudaDevices &&
         table().devices[static_cast<std::size_t>(index)] != nullptr;
}

std::shared_ptr<FakeCudaDevice> fake_cuda_device(c10::Device device) {
  const c10::DeviceIndex index =
      device.has_index() ? device.index() : current_cuda_device().index();
  TORCH_CHECK(has_fake_cuda_device(index), "no rank has cuda:", static_cast<int>(index));
  const std::lock_guard guard(table().lock);
  return table().devices[static_cast<std::size_t>(index)];
}

c10::Device current_cuda_device() { return c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice(); }

c10::Stream current_cuda_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(device);
}

comm::DeviceStream native_stream(const c10::Stream& stream) {
  return reinterpret_cast<comm::DeviceStream>(stream.id());
}

const at::Generator& cuda_generator(c10::DeviceIndex index) {
  static const auto generators = [] {
    std::array<at::Generator, kFakeCudaDevices> made;
    for (at::Generator& generator : made) generator = at::detail::createCPUGenerator();
    return made;
  }();
  if (index < 0) index = current_cuda_device().index();
  return generators.at(static_cast<std::size_t>(index));
}

}  // namespace kolo::test
