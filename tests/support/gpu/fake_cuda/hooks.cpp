// LibTorch's other queries of CUDA.
#include <memory>
#include <string>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "support/gpu/fake_cuda/device.hpp"
#include "support/gpu/fake_cuda/install.hpp"

namespace kolo::test {
namespace {

class FakeCudaHooks final : public at::CUDAHooksInterface {
 public:
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  std::string showConfig() const override { return "a fake of CUDA"; }

  int getNumGPUs() const override { return kFakeCudaDevices; }
  c10::DeviceIndex deviceCount() const override { return kFakeCudaDevices; }
  bool hasPrimaryContext(c10::DeviceIndex index) const override {
    return has_fake_cuda_device(index);
  }

  c10::DeviceIndex current_device() const override { return current_cuda_device().index(); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  void setCurrentDevice(c10::DeviceIndex index) const override { exchangeDevice(index); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    return guard().exchangeDevice({c10::kCUDA, index}).index();
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return exchangeDevice(index);
  }
  void deviceSynchronize(c10::DeviceIndex index) const override {
    guard().synchronizeDevice(index);
  }

  c10::Allocator* getCUDADeviceAllocator() const override { return c10::GetAllocator(c10::kCUDA); }
  /// No memory is ever pinned.
  c10::Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return cuda_generator(index);
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override {
    return at::detail::createCPUGenerator();
  }

 private:
  static c10::impl::VirtualGuardImpl guard() { return {c10::kCUDA}; }
};

}  // namespace

void install_hooks() {
  at::CUDAHooksRegistry()->Register(
      "CUDAHooks", [](at::CUDAHooksArgs) { return std::make_unique<FakeCudaHooks>(); });
}

}  // namespace kolo::test
