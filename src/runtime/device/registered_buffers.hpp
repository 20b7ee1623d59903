#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "comm/gpu/device_communicator.hpp"
#include "runtime/data/operation.hpp"

namespace kolo::runtime {

/// The program's SharedBuffers, each registered with a communicator from its first use until only
/// objects of this class own it. The communicator outlives this. For the thread that launches.
class RegisteredBuffers {
 public:
  explicit RegisteredBuffers(comm::DeviceCommunicator& communicator)
      : communicator_(communicator) {}
  RegisteredBuffers(const RegisteredBuffers&) = delete;  // registrations end once
  RegisteredBuffers& operator=(const RegisteredBuffers&) = delete;
  ~RegisteredBuffers();

  /// An operation will use it.
  void use(const BufferMemory& memory);
  /// Deregisters the memory that nobody else owns any more, so that no operation uses it, and
  /// returns its owners, whose deleters are the program's.
  std::vector<std::shared_ptr<void>> take_unused();

 private:
  struct Registered {
    std::shared_ptr<void> owner;
    void* registration;
  };

  comm::DeviceCommunicator& communicator_;
  std::map<std::byte*, Registered> registered_;
};

}  // namespace kolo::runtime
