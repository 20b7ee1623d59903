#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "runtime/data/operation.hpp"
#include "runtime/device/device_path.hpp"

namespace kolo::runtime {

/// The program's SharedBuffers, each registered with a communicator from its first use until
/// neither the program nor its operations use it; until then its memory is kept. None is registered
/// if staging memory is not. For the launching thread.
class RegisteredBuffers {
 public:
  /// The addresses that a call passes to the communicator.
  struct Places {
    const std::byte* input;
    std::byte* output;
  };

  /// `path` outlives it.
  explicit RegisteredBuffers(const DevicePath& path) : path_(path) {}
  RegisteredBuffers(const RegisteredBuffers&) = delete;  // registrations end once
  RegisteredBuffers& operator=(const RegisteredBuffers&) = delete;
  ~RegisteredBuffers();

  /// Registers the buffers that the batch uses.
  void prepare(const Operations& batch);
  /// Whether all of `memory` lies in one buffer that is registered.
  bool have(std::span<const std::byte> memory) const;
  /// The memory that an operation of the batch reads and writes. An operation on SharedBuffers,
  /// which is alone in its batch, uses staging memory instead of memory that is not registered,
  /// because this rank has joined, the communicator has refused the buffer, or it is other memory
  /// of the program. This copies the input there; the caller copies the output back.
  Places places_for(std::span<const std::byte> input, std::span<std::byte> output);

  /// Deregisters memory that is no longer used, and returns its owners, whose deleters belong to
  /// the program.
  std::vector<std::shared_ptr<void>> take_unused();
  /// Forgets all memory before an abort, which ends all registrations, and returns its owners, to
  /// be released after the abort.
  std::vector<std::shared_ptr<void>> take_all();

 private:
  struct Registered {
    std::shared_ptr<void> owner;
    std::span<const std::byte> memory;
    void* registration = nullptr;  // null: refused
  };

  void use(const BufferMemory& memory);

  const DevicePath& path_;
  bool is_on_buffers_ = false;                                            // the batch
  std::map<std::weak_ptr<void>, Registered, std::owner_less<>> buffers_;  // keyed by users
};

}  // namespace kolo::runtime
