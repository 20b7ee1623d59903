#pragma once

#include <memory>
#include <mutex>

#include "comm/gpu/gpu.hpp"

namespace kolo::runtime {

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

  /// Once it is open.
  comm::Gpu& get() const { return *gpu_; }
  comm::DeviceStream stream() const { return stream_.get(); }
  void release_stream();

 private:
  comm::Gpus& gpus_;
  const int local_rank_;
  std::mutex opening_;
  std::shared_ptr<comm::Gpu> gpu_;
  std::shared_ptr<CUstream_st> stream_;  // made before anything else is done on the GPU
};

}  // namespace kolo::runtime
