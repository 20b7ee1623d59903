// Devices, streams and events of the fake CUDA.
#include <array>
#include <memory>

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "support/gpu/fake_cuda/allocator.hpp"
#include "support/gpu/fake_cuda/device.hpp"
#include "support/gpu/fake_cuda/install.hpp"

namespace kolo::test {
namespace {

thread_local c10::DeviceIndex current_index = 0;
thread_local std::array<c10::StreamId, kFakeCudaDevices> current_streams{};

struct FakeCudaEvent {
  std::shared_ptr<FakeCudaDevice> device;
  std::shared_ptr<CUevent_st> event;

  bool has_passed() const { return device->hub().has_passed(device->rank(), event.get()); }
};

FakeCudaEvent& event_at(void* event) { return *static_cast<FakeCudaEvent*>(event); }

c10::StreamId& current_stream_of(c10::DeviceIndex index) {
  if (index < 0) index = current_index;
  return current_streams.at(static_cast<std::size_t>(index));
}

class FakeCudaGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::DeviceIndex deviceCount() const noexcept override { return kFakeCudaDevices; }

  c10::Device getDevice() const override { return {c10::kCUDA, current_index}; }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.is_cuda() && device.index() < kFakeCudaDevices, "no such device: ", device);
    uncheckedSetDevice(device);
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) current_index = device.index();
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device previous = getDevice();
    setDevice(device);
    return previous;
  }

  c10::Stream getStream(c10::Device device) const override {
    return stream_of(device, current_stream_of(device.index()));
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream_of(device, 0); }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return fake_cuda_device(device)->new_stream();
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return fake_cuda_device(device)->pool_stream();
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream previous = getStream(stream.device());
    current_stream_of(stream.device_index()) = stream.id();
    return previous;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return native_stream(stream);
  }
  bool queryStream(const c10::Stream& stream) const override {
    const auto device = fake_cuda_device(stream.device());
    return device->hub().is_done(device->rank(), native_stream(stream));
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    fake_cuda_device(stream.device())->synchronize(native_stream(stream));
  }
  void synchronizeDevice(const c10::DeviceIndex index) const override {
    fake_cuda_device({c10::kCUDA, index})->synchronize();
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    const auto device = fake_cuda_device(stream.device());
    if (*event == nullptr) {
      *event = new FakeCudaEvent{device, device->hub().make_event(device->rank())};
    }
    device->hub().record(device->rank(), event_at(*event).event.get(), native_stream(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    const auto device = fake_cuda_device(stream.device());
    device->hub().wait(device->rank(), native_stream(stream), event_at(event).event.get());
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || event_at(event).has_passed();
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    const FakeCudaEvent& waited_for = event_at(event);
    waited_for.device->note_host_sync();
    waited_for.device->hub().synchronize_event(waited_for.device->rank(), waited_for.event.get());
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<FakeCudaEvent*>(event);
  }

  void recordDataPtrOnStream(const c10::DataPtr& memory, const c10::Stream& stream) const override {
    keep_for_stream(memory, native_stream(stream));
  }

 private:
  c10::Stream stream_of(c10::Device device, c10::StreamId id) const {
    return c10::Stream(c10::Stream::UNSAFE, device.has_index() ? device : getDevice(), id);
  }
};

}  // namespace

void install_guard() { c10::impl::registerDeviceGuard(c10::kCUDA, new FakeCudaGuard); }

}  // namespace kolo::test
