#include "runtime/device/device_staging.hpp"

#include <algorithm>
#include <utility>

namespace kolo::runtime {

DeviceStaging::~DeviceStaging() {
  for (const Block& block : take_ended()) communicator_.deregister(block.registration);
  for (const Block& block : outgrown_) communicator_.deregister(block.registration);
  communicator_.deregister(block_.registration);
}

void DeviceStaging::reserve(std::size_t bytes) {
  if (bytes <= block_.bytes) return;
  // Tensors that grow slowly must not cost a block each.
  const std::size_t size = std::max(bytes, block_.bytes + block_.bytes / 2);
  if (block_.memory != nullptr) outgrown_.push_back(std::exchange(block_, {}));
  block_.memory = gpu_.allocate(size);
  block_.bytes = size;
  block_.registration = communicator_.register_memory(block_.memory.get(), size);
}

std::vector<std::shared_ptr<void>> DeviceStaging::take_outgrown() {
  std::vector<std::shared_ptr<void>> owners;
  for (Block& block : take_ended()) {
    communicator_.deregister(block.registration);
    owners.push_back(std::move(block.memory));
  }
  for (Block& block : std::exchange(outgrown_, {})) {
    void* const address = block.memory.get();
    owners.emplace_back(address, [block = std::move(block), ended = ended_](void*) mutable {
      const std::lock_guard lock(ended->lock);
      ended->blocks.push_back(std::move(block));
    });
  }
  return owners;
}

std::vector<DeviceStaging::Block> DeviceStaging::take_ended() {
  const std::lock_guard lock(ended_->lock);
  return std::exchange(ended_->blocks, {});
}

}  // namespace kolo::runtime
