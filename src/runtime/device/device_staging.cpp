#include "runtime/device/device_staging.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "kolo/error.hpp"

namespace kolo::runtime {

DeviceStaging::~DeviceStaging() {
  for (const Block& block : take_finished()) communicator_.deregister(block.registration);
  for (const Block& block : outgrown_) communicator_.deregister(block.registration);
  communicator_.deregister(block_.registration);
}

bool DeviceStaging::try_to_register() {
  reserve(kAlignment);
  block_.registration = communicator_.register_memory(block_.memory.get(), block_.bytes);
  return block_.registration != nullptr;
}

void DeviceStaging::set_registered(bool on_all_ranks) {
  is_registered_ = on_all_ranks;
  if (!on_all_ranks) communicator_.deregister(std::exchange(block_.registration, nullptr));
}

void DeviceStaging::reserve(std::size_t bytes) {
  if (bytes <= block_.bytes) return;
  // Grows by half at least: slowly growing tensors must not need a new block each time.
  const std::size_t size = std::max(bytes, block_.bytes + block_.bytes / 2);
  if (block_.memory != nullptr) outgrown_.push_back(std::exchange(block_, {}));
  block_.memory = gpu_.allocate(size);
  block_.bytes = size;
  if (!is_registered_) return;
  block_.registration = communicator_.register_memory(block_.memory.get(), size);
  if (block_.registration != nullptr) return;
  throw BackendError("NCCL does not register " + std::to_string(size) +
                     " bytes of this GPU's memory, although it has registered some before, and "
                     "ranks must not mix registered memory with other memory. Set "
                     "NCCL_LOCAL_REGISTER=0 on all ranks to do without.");
}

std::vector<std::shared_ptr<void>> DeviceStaging::take_outgrown() {
  std::vector<std::shared_ptr<void>> owners;
  for (Block& block : take_finished()) {
    communicator_.deregister(block.registration);
    owners.push_back(std::move(block.memory));
  }
  for (Block& block : std::exchange(outgrown_, {})) {
    void* const address = block.memory.get();
    owners.emplace_back(address, [block = std::move(block), finished = finished_](void*) mutable {
      const std::lock_guard lock(finished->lock);
      finished->blocks.push_back(std::move(block));
    });
  }
  return owners;
}

std::vector<DeviceStaging::Block> DeviceStaging::take_finished() {
  const std::lock_guard lock(finished_->lock);
  return std::exchange(finished_->blocks, {});
}

}  // namespace kolo::runtime
