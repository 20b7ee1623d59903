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
/// outlives it. It ends once no operation uses it, or after the communicator was aborted.
///
/// For the thread that launches. Memory that is outgrown is deregistered there too, once the GPU
/// has ended with it, but freed by the owners of what `take_outgrown` returns: that may wait for
/// the GPU.
class DeviceStaging {
 public:
  DeviceStaging(comm::Gpu& gpu, comm::DeviceCommunicator& communicator)
      : gpu_(gpu), communicator_(communicator) {}
  DeviceStaging(const DeviceStaging&) = delete;  // registrations end once
  DeviceStaging& operator=(const DeviceStaging&) = delete;
  ~DeviceStaging();

  /// Allocates the first memory, before any other call. Whether it could be registered.
  bool try_to_register();
  /// Then: whether it could on all ranks, so that all memory is registered, or none.
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

  /// Owners of the memory that larger one has replaced, until what was launched so far has ended.
  std::vector<std::shared_ptr<void>> take_outgrown();

 private:
  struct Block {
    std::shared_ptr<std::byte> memory;
    std::size_t bytes = 0;
    void* registration = nullptr;
  };
  /// Blocks that the GPU has ended with, whoever notices that.
  struct Ended {
    std::mutex lock;
    std::vector<Block> blocks;
  };

  static constexpr std::size_t kAlignment = 256;

  static std::size_t rounded_up(std::size_t size) {
    return (size + kAlignment - 1) / kAlignment * kAlignment;
  }
  void reserve(std::size_t bytes);
  std::vector<Block> take_ended();

  comm::Gpu& gpu_;
  comm::DeviceCommunicator& communicator_;
  bool is_registered_ = false;
  Block block_;
  std::vector<Block> outgrown_;
  std::shared_ptr<Ended> ended_ = std::make_shared<Ended>();
};

}  // namespace kolo::runtime
