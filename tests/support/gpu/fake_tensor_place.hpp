#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "support/gpu/fake_gpu_hub.hpp"
#include "support/gpu/tensor_place.hpp"

namespace kolo::test {

/// A rank's GPU in a fake world.
class FakeTensorPlace final : public TensorPlace {
 public:
  FakeTensorPlace(std::shared_ptr<FakeGpuHub> hub, int rank, int gpu)
      : hub_(std::move(hub)), rank_(rank), gpu_(gpu) {}

  bool has_gpu() const { return hub_ != nullptr; }
  Device device() const override { return {DeviceKind::Cuda, gpu_}; }
  std::shared_ptr<std::byte> allocate(std::size_t bytes) override {
    // Freed as by cudaFree, which waits for the GPU.
    const std::shared_ptr<std::byte> memory = hub_->allocate(rank_, bytes);
    std::byte* const data = memory.get();
    return {data,
            [memory, hub = hub_, rank = rank_](std::byte*) { hub->synchronize(rank, nullptr); }};
  }
  void upload(std::span<const std::byte> from, std::byte* to) override {
    hub_->copy_to_device(rank_, from, to);
  }
  void download(const std::byte* from, std::span<std::byte> to) override {
    hub_->synchronize(rank_, nullptr);
    hub_->copy_to_host(rank_, from, to);
  }
  void upload_on(comm::DeviceStream stream, std::span<const std::byte> from,
                 std::byte* to) override {
    hub_->kernel(rank_, stream,
                 {.name = "producer",
                  .writes = {ByteRange(to, from.size())},
                  .run = [to, bytes = std::vector<std::byte>(from.begin(), from.end())] {
                    std::copy(bytes.begin(), bytes.end(), to);
                  }});
  }
  void download_on(comm::DeviceStream stream, const std::byte* from,
                   std::span<std::byte> to) override {
    hub_->kernel(rank_, stream,
                 {.name = "consumer", .reads = {ByteRange(from, to.size())}, .run = [from, to] {
                    std::copy_n(from, to.size(), to.begin());
                  }});
    hub_->synchronize(rank_, stream);
  }

 private:
  std::shared_ptr<FakeGpuHub> hub_;
  int rank_;
  int gpu_;
};

}  // namespace kolo::test
