#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "runtime/data/operation.hpp"
#include "runtime/device/device_path.hpp"

namespace kolo::runtime {

/// The program's SharedBuffers, each registered with a communicator from its first use until the
/// program and its operations use it no longer. Until then its memory is kept. None is registered
/// where staging memory is not. For the thread that launches.
class RegisteredBuffers {
 public:
  /// What a call passes to the communicator.
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
  /// Where an operation of the batch reads and writes. One on SharedBuffers, which is alone in its
  /// batch, does so in staging memory instead of memory that is not registered, because this rank
  /// has joined, the communicator has refused the buffer, or it is other memory of the program's.
  /// The input is copied there; the caller copies the output from there.
  Places places_for(std::span<const std::byte> input, std::span<std::byte> output);

  /// Deregisters the memory that nobody uses any more, and returns its owners, whose deleters are
  /// the program's.
  std::vector<std::shared_ptr<void>> take_unused();
  /// Forgets all of it, when an abort is to end all registrations, and returns its owners, which
  /// are released after that.
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
  std::map<std::weak_ptr<void>, Registered, std::owner_less<>> buffers_;  // by who uses them
};

}  // namespace kolo::runtime
