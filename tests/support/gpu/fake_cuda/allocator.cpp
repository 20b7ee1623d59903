#include "support/gpu/fake_cuda/allocator.hpp"

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "support/gpu/fake_cuda/device.hpp"
#include "support/gpu/fake_cuda/install.hpp"

namespace kolo::test {
namespace {

struct Block {
  std::shared_ptr<FakeCudaDevice> device;
  std::byte* memory;
  std::mutex lock;
  std::vector<comm::DeviceStream> streams;
};

void give_up(void* context) {
  const std::unique_ptr<Block> block(static_cast<Block*>(context));
  block->device->hub().free_on(block->device->rank(), block->streams, block->memory);
}

class FakeCudaAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device current = current_cuda_device();
    if (bytes == 0) return {nullptr, current};
    const auto device = fake_cuda_device(current);
    const comm::DeviceStream stream = native_stream(current_cuda_stream(current));
    std::byte* const memory = device->hub().allocate_on(device->rank(), stream, bytes);
    return {memory, new Block{device, memory, {}, {stream}}, &give_up, current};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

}  // namespace

c10::Allocator& fake_cuda_allocator() {
  static FakeCudaAllocator allocator;
  return allocator;
}

void keep_for_stream(const c10::DataPtr& memory, comm::DeviceStream stream) {
  if (memory.get_deleter() != &give_up) return;
  Block& block = *static_cast<Block*>(memory.get_context());
  const std::lock_guard guard(block.lock);
  if (std::find(block.streams.begin(), block.streams.end(), stream) == block.streams.end()) {
    block.streams.push_back(stream);
  }
}

void install_allocator() { c10::SetAllocator(c10::kCUDA, &fake_cuda_allocator()); }

}  // namespace kolo::test
