#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "comm/gpu/device_communicator.hpp"
#include "comm/gpu/gpu.hpp"

namespace kolo::runtime {

/// Scratch memory of a GPU for the operations of one stream, registered with the communicator if
/// that registers memory on all ranks (see DeviceCommunicator::register_memory). The communicator
/// outlives it. Destroy it once no operation uses it, or after the communicator was aborted.
///
/// For the launching thread. Outgrown memory is deregistered on that thread, once the GPU has
/// finished with it, but freed by the owners that `take_outgrown` returns, since freeing may wait
/// for the GPU.
class DeviceStaging {
 public:
  DeviceStaging(comm::Gpu& gpu, comm::DeviceCommunicator& communicator)
      : gpu_(gpu), communicator_(communicator) {}
  DeviceStaging(const DeviceStaging&) = delete;  // registrations end once
  DeviceStaging& operator=(const DeviceStaging&) = delete;
  ~DeviceStaging();

  /// Allocates the first memory and tries to register it; true on success. Call it first.
  bool try_to_register();
  /// Call it next: all memory is registered if `on_all_ranks`, otherwise none.
  void set_registered(bool on_all_ranks);
  bool is_registered() const { return is_registered_; }

  /// Returns places of these sizes in bytes, aligned for any kernel. Operations that were launched
  /// before may still use the same memory.
  /// @throws BackendError if memory is registered, and this cannot be
  template <std::size_t kPlaces>
  std::array<std::byte*, kPlaces> take(const std::array<std::size_t, kPlaces>& sizes) {
    std::size_t total = 0;
    for (const std::size_t size : sizes) total += rounded_up(size);
    reserve(total);
    std::array<std::byte*, kPlaces> places{};
    std::byte* next = block_.memory.get();
    for (std::size_t i = 0; i < kPlaces; next += rounded_up(sizes[i++])) places[i] = next;
    return places;
  }

  /// Owners of memory that larger blocks have replaced; keep them until everything launched so far
  /// has completed.
  std::vector<std::shared_ptr<void>> take_outgrown();

 private:
  struct Block {
    std::shared_ptr<std::byte> memory;
    std::size_t bytes = 0;
    void* registration = nullptr;
  };
  /// Blocks that the GPU has finished with. Any thread may add them.
  struct Finished {
    std::mutex lock;
    std::vector<Block> blocks;
  };

  static constexpr std::size_t kAlignment = 256;

  static std::size_t rounded_up(std::size_t size) {
    return (size + kAlignment - 1) / kAlignment * kAlignment;
  }
  void reserve(std::size_t bytes);
  std::vector<Block> take_finished();

  comm::Gpu& gpu_;
  comm::DeviceCommunicator& communicator_;
  bool is_registered_ = false;
  Block block_;
  std::vector<Block> outgrown_;
  std::shared_ptr<Finished> finished_ = std::make_shared<Finished>();
};

}  // namespace kolo::runtime
