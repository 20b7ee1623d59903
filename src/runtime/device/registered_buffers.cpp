#include "runtime/device/registered_buffers.hpp"

#include <mutex>
#include <utility>

namespace kolo::runtime {
namespace {

/// How many objects of this class own what an owner owns: process sets may share a buffer.
class BufferUsers {
 public:
  void add(const std::shared_ptr<void>& owner) {
    const std::lock_guard lock(lock_);
    ++counts_[owner];
  }
  void remove(const std::shared_ptr<void>& owner) {
    const std::lock_guard lock(lock_);
    if (--counts_[owner] == 0) counts_.erase(owner);
  }
  /// Whether nobody else is left. Nobody else can come then.
  bool are_the_only_owners(const std::shared_ptr<void>& owner) {
    const std::lock_guard lock(lock_);
    return owner.use_count() <= counts_[owner];
  }

 private:
  std::mutex lock_;
  std::map<std::weak_ptr<void>, long, std::owner_less<>> counts_;
};

BufferUsers& buffer_users() {
  static auto* const all = new BufferUsers;  // programs end while process sets are still there
  return *all;
}

}  // namespace

RegisteredBuffers::~RegisteredBuffers() {
  for (const auto& [data, buffer] : registered_) {
    communicator_.deregister(buffer.registration);
    buffer_users().remove(buffer.owner);
  }
}

void RegisteredBuffers::use(const BufferMemory& memory) {
  if (memory.size_bytes == 0 || memory.owner == nullptr) return;
  if (registered_.contains(memory.data)) return;
  void* const registration = communicator_.register_memory(memory.data, memory.size_bytes);
  registered_[memory.data] = {memory.owner, registration};
  buffer_users().add(memory.owner);
}

std::vector<std::shared_ptr<void>> RegisteredBuffers::take_unused() {
  std::vector<std::shared_ptr<void>> owners;
  for (auto it = registered_.begin(); it != registered_.end();) {
    const Registered& buffer = it->second;
    if (!buffer_users().are_the_only_owners(buffer.owner)) {
      ++it;
      continue;
    }
    communicator_.deregister(buffer.registration);
    buffer_users().remove(buffer.owner);
    owners.push_back(buffer.owner);
    it = registered_.erase(it);
  }
  return owners;
}

}  // namespace kolo::runtime
