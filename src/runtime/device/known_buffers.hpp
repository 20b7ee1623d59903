#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "comm/gpu/device_communicator.hpp"
#include "runtime/data/operation.hpp"

namespace kolo::runtime {

/// The program's lasting memory, registered with a communicator, which outlives it, from its first
/// use until only this object owns it, or others of other process sets. For the thread that
/// launches.
class KnownBuffers {
 public:
  explicit KnownBuffers(comm::DeviceCommunicator& communicator) : communicator_(communicator) {}
  KnownBuffers(const KnownBuffers&) = delete;  // registrations end once
  KnownBuffers& operator=(const KnownBuffers&) = delete;
  ~KnownBuffers();

  /// An operation will use it.
  void use(const LastingMemory& memory);
  /// Deregisters the memory that nobody else owns any more, so that no operation uses it, and
  /// returns its owners, whose deleters are the program's.
  std::vector<std::shared_ptr<void>> take_unused();

 private:
  struct Known {
    std::shared_ptr<void> owner;
    void* registration;
  };

  comm::DeviceCommunicator& communicator_;
  std::map<std::byte*, Known> known_;
};

}  // namespace kolo::runtime
