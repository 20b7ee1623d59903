#include "runtime/device/known_buffers.hpp"

#include <utility>

namespace kolo::runtime {

KnownBuffers::~KnownBuffers() {
  for (const auto& [data, known] : known_) communicator_.deregister(known.registration);
}

void KnownBuffers::use(const LastingMemory& memory) {
  if (memory.size_bytes == 0 || memory.owner == nullptr || known_.contains(memory.data)) return;
  void* const registration = communicator_.register_memory(memory.data, memory.size_bytes);
  known_[memory.data] = {memory.owner, registration};
}

std::vector<std::shared_ptr<void>> KnownBuffers::take_unused() {
  std::vector<std::shared_ptr<void>> owners;
  for (auto it = known_.begin(); it != known_.end();) {
    if (it->second.owner.use_count() > 1) {
      ++it;
      continue;
    }
    communicator_.deregister(it->second.registration);
    owners.push_back(std::move(it->second.owner));
    it = known_.erase(it);
  }
  return owners;
}

}  // namespace kolo::runtime
