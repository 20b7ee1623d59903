#include "runtime/device/known_buffers.hpp"

#include <mutex>
#include <utility>

namespace kolo::runtime {
namespace {

/// How many objects of this class own what an owner owns: process sets may share a buffer.
class Knowers {
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
  bool are_alone(const std::shared_ptr<void>& owner) {
    const std::lock_guard lock(lock_);
    return owner.use_count() <= counts_[owner];
  }

 private:
  std::mutex lock_;
  std::map<std::weak_ptr<void>, long, std::owner_less<>> counts_;
};

Knowers& knowers() {
  static auto* const all = new Knowers;  // programs end while process sets are still there
  return *all;
}

}  // namespace

KnownBuffers::~KnownBuffers() {
  for (const auto& [data, known] : known_) {
    communicator_.deregister(known.registration);
    knowers().remove(known.owner);
  }
}

void KnownBuffers::use(const LastingMemory& memory) {
  if (memory.size_bytes == 0 || memory.owner == nullptr || known_.contains(memory.data)) return;
  void* const registration = communicator_.register_memory(memory.data, memory.size_bytes);
  known_[memory.data] = {memory.owner, registration};
  knowers().add(memory.owner);
}

std::vector<std::shared_ptr<void>> KnownBuffers::take_unused() {
  std::vector<std::shared_ptr<void>> owners;
  for (auto it = known_.begin(); it != known_.end();) {
    const Known& known = it->second;
    if (!knowers().are_alone(known.owner)) {
      ++it;
      continue;
    }
    communicator_.deregister(known.registration);
    knowers().remove(known.owner);
    owners.push_back(known.owner);
    it = known_.erase(it);
  }
  return owners;
}

}  // namespace kolo::runtime
