#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "comm/gpu/device_communicator.hpp"
#include "comm/gpu/gpu.hpp"
#include "kolo/task.hpp"
#include "runtime/data/data_path.hpp"

namespace kolo::runtime {

/// Reuses events of one kind, so that programs in a steady state create none. Any thread.
class EventPool {
 public:
  using Make = std::shared_ptr<CUevent_st> (comm::Gpu::*)();
  explicit EventPool(Make make) : make_(make) {}

  /// Returns an event of `gpu`, which is the same GPU in every call. The event returns to the pool
  /// when its last owner releases it; streams that already wait for it are not affected.
  std::shared_ptr<CUevent_st> take(comm::Gpu& gpu) {
    std::shared_ptr<CUevent_st> event;
    {
      const Lock lock(free_->lock);
      if (!free_->events.empty()) {
        event = std::move(free_->events.back());
        free_->events.pop_back();
      }
    }
    if (event == nullptr) event = (gpu.*make_)();
    CUevent_st* const handle = event.get();
    return {handle, [event = std::move(event), free = free_](CUevent_st*) mutable {
              const Lock lock(free->lock);
              free->events.push_back(std::move(event));
            }};
  }

 private:
  struct Free {
    Mutex lock;
    std::vector<std::shared_ptr<CUevent_st>> events KOLO_GUARDED_BY(lock);
  };
  Make make_;
  std::shared_ptr<Free> free_ = std::make_shared<Free>();
};

/// Memory of a GPU that operations of one stream use one after another. A GPU frees memory only
/// when it is idle, so nothing is freed in a steady state. Any thread.
class ScratchPool {
 public:
  /// Returns at least `bytes` bytes. They return to the pool when their last owner releases them;
  /// the stream orders their next use after this one.
  std::shared_ptr<std::byte> take(comm::Gpu& gpu, std::size_t bytes) {
    std::shared_ptr<std::byte> memory;
    std::size_t size = bytes;
    {
      const Lock lock(free_->lock);
      const auto found = free_->blocks.lower_bound(bytes);
      // A small operation must not keep a large block.
      if (found != free_->blocks.end() && found->first <= 2 * bytes) {
        size = found->first;
        memory = std::move(found->second);
        free_->blocks.erase(found);
      }
    }
    if (memory == nullptr) memory = gpu.allocate(bytes);
    std::byte* const address = memory.get();
    return {address, [memory = std::move(memory), size, free = free_](std::byte*) mutable {
              const Lock lock(free->lock);
              if (!free->is_closed) free->blocks.emplace(size, std::move(memory));
            }};
  }

  /// Frees unused memory now, and the rest when it is returned.
  void close() {
    const Lock lock(free_->lock);
    free_->is_closed = true;
    free_->blocks.clear();
  }

 private:
  struct Free {
    Mutex lock;
    std::multimap<std::size_t, std::shared_ptr<std::byte>> blocks KOLO_GUARDED_BY(lock);
    bool is_closed KOLO_GUARDED_BY(lock) = false;
  };
  std::shared_ptr<Free> free_ = std::make_shared<Free>();
};

/// Scratch memory of a GPU for the operations of one stream. For the launching thread.
class DeviceStaging {
 public:
  /// Both outlive it.
  DeviceStaging(const DataPath& path, comm::Gpu& gpu) : path_(path), gpu_(gpu) {}

  /// Bytes that hold places of these sizes.
  static std::size_t room_for(std::span<const std::size_t> sizes);
  /// Bytes that all ranks have.
  std::size_t room() const { return room_; }
  /// Collective: makes room for `needed` bytes. Throws AgreedFailure if a rank's GPU has no memory
  /// left.
  Task grow(std::size_t needed);
  /// Memory of these sizes, for which there is room, aligned for any kernel. Operations that were
  /// launched before may still use the same memory.
  std::vector<std::byte*> take(std::span<const std::size_t> sizes) const;
  template <std::size_t kPlaces>
  std::array<std::byte*, kPlaces> take(const std::array<std::size_t, kPlaces>& sizes) const {
    std::array<std::byte*, kPlaces> places{};
    std::ranges::copy(take(std::span<const std::size_t>(sizes)), places.begin());
    return places;
  }

  /// Owners of memory that larger blocks have replaced; keep them until everything launched so far
  /// has completed.
  std::vector<std::shared_ptr<void>> take_outgrown() { return std::exchange(outgrown_, {}); }

 private:
  const DataPath& path_;
  comm::Gpu& gpu_;
  std::shared_ptr<std::byte> block_;
  std::size_t bytes_ = 0;  // of the block
  std::size_t room_ = 0;   // no rank has less
  std::vector<std::shared_ptr<void>> outgrown_;
};

/// The one GPU that this rank uses in a process set, with the set's stream; opened on first use.
class RankGpu {
 public:
  /// `gpus` outlives this.
  RankGpu(comm::Gpus& gpus, int local_rank) : gpus_(gpus), local_rank_(local_rank) {}

  /// Opens GPU `index`, unless it is open. Any thread.
  /// @throws InvalidArgument if another GPU is open
  /// @throws BackendError if there is no such GPU
  comm::Gpu& use(int index);
  /// The GPU that is open, else the default one: the `local_rank`-th, modulo their number. Any
  /// thread.
  int index();

  /// Once it is open. Without the lock: from then on both stay as they are until release_stream().
  comm::Gpu& get() const KOLO_NO_THREAD_SAFETY_ANALYSIS { return *gpu_; }
  comm::DeviceStream stream() const KOLO_NO_THREAD_SAFETY_ANALYSIS { return stream_.get(); }
  void release_stream();

 private:
  comm::Gpus& gpus_;
  const int local_rank_;
  Mutex opening_;
  std::shared_ptr<comm::Gpu> gpu_ KOLO_GUARDED_BY(opening_);
  // Made before anything else is done on the GPU.
  std::shared_ptr<CUstream_st> stream_ KOLO_GUARDED_BY(opening_);
};

/// Counts the bytes that a rank packs, and estimates those that it sends to other GPUs, which NCCL
/// does not report: the average over the ranks of a ring.
class RingTraffic {
 public:
  explicit RingTraffic(int size) : size_(static_cast<std::uint64_t>(size)) {}

  /// Once around the ring: an all-gather, a reduce-scatter, a broadcast.
  void add_round(std::size_t bytes) { bytes_ += bytes * (size_ - 1) / size_; }
  void add_sent(std::size_t bytes) { bytes_ += bytes; }
  void add_packed(std::size_t bytes) { packed_ += bytes; }

  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t packed() const { return packed_; }

 private:
  std::uint64_t size_;
  std::uint64_t bytes_ = 0;
  std::uint64_t packed_ = 0;
};

/// An engine's resources on its GPU, for one stream, which orders the uses of the staging memory.
struct DevicePath {
  comm::Gpu& gpu;
  comm::DeviceCommunicator& communicator;
  comm::DeviceStream stream;
  RingTraffic& traffic;
  DeviceStaging& staging;
};

}  // namespace kolo::runtime
