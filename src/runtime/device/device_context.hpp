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
#include "runtime/data/set_context.hpp"

namespace kolo::runtime {

/// Reuses events or memory of one GPU, which frees memory only when it is idle: programs in a
/// steady state create and free nothing. Any thread.
template <class T>
class Pool {
 public:
  /// Returns one of at least `size` bytes, from `make` if none is unused. It returns to the pool
  /// when its last owner releases it: streams that already wait for an event are not affected, and
  /// the uses of memory must be ordered by one stream.
  template <class Make>
  std::shared_ptr<T> take(const Make& make, std::size_t size = 0) {
    std::shared_ptr<T> taken;
    {
      const Lock lock(unused_->lock);
      const auto found = unused_->of_size.lower_bound(size);
      // A small operation must not keep a large block.
      if (found != unused_->of_size.end() && found->first <= 2 * size) {
        size = found->first;
        taken = std::move(found->second);
        unused_->of_size.erase(found);
      }
    }
    if (taken == nullptr) taken = make();
    T* const handle = taken.get();
    return {handle, [taken = std::move(taken), size, unused = unused_](T*) mutable {
              const Lock lock(unused->lock);
              if (!unused->is_closed) unused->of_size.emplace(size, std::move(taken));
            }};
  }

  /// Frees what is unused now, and the rest when it is returned.
  void close() {
    const Lock lock(unused_->lock);
    unused_->is_closed = true;
    unused_->of_size.clear();
  }

 private:
  struct Unused {
    Mutex lock;
    std::multimap<std::size_t, std::shared_ptr<T>> of_size KOLO_GUARDED_BY(lock);
    bool is_closed KOLO_GUARDED_BY(lock) = false;
  };
  std::shared_ptr<Unused> unused_ = std::make_shared<Unused>();
};

/// Scratch memory of a GPU for the operations of one stream. For the launching thread.
class DeviceStaging {
 public:
  /// Both outlive it.
  DeviceStaging(const SetContext& set, comm::Gpu& gpu) : set_(set), gpu_(gpu) {}

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
  const SetContext& set_;
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
struct DeviceContext {
  comm::Gpu& gpu;
  comm::DeviceCommunicator& communicator;
  comm::DeviceStream stream;
  /// Of the batch: passes when its last collective is about to start.
  const std::shared_ptr<CUevent_st>& launch;
  RingTraffic& traffic;
  DeviceStaging& staging;

  /// Call it right before the communicator launches.
  void mark_launch() const { gpu.record(launch.get(), stream); }
};

}  // namespace kolo::runtime
