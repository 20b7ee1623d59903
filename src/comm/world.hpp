#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "comm/gpu/gpu.hpp"
#include "comm/topology.hpp"
#include "kolo/communicator.hpp"
#include "kolo/shared_window.hpp"
#include "kolo/task.hpp"

namespace kolo::comm {

/// Everything outside this process that the runtime needs: messages, shared memory, GPUs, and the
/// liveness of ranks. One object per rank: MpiWorld under mpirun, RendezvousWorld for ranks that
/// find each other in a store, SelfWorld for one rank, and FakeWorld for ranks that are threads of
/// one process.
class World {
 public:
  virtual ~World() = default;

  virtual const Topology& topology() const = 0;

  /// Creates a communicator over `ranks` (world ranks, ascending, this rank among them) with its
  /// own tags. Local, not collective. All members pass the same `channel`, counted from 0, which no
  /// other live communicator of an overlapping group uses.
  virtual std::unique_ptr<Communicator> make_communicator(std::span<const int> ranks,
                                                          int channel) = 0;

  /// Creates a window with `segment_bytes` bytes per rank among the ranks of `communicator`, which
  /// all run on one node. Collective; uses the communicator's tag `tag` meanwhile. Sets `window`
  /// once the Task is done. Throws BackendError on all ranks if any of them cannot create, fill or
  /// map its memory; then nothing is left behind.
  virtual Task make_window(Communicator& communicator, int tag, std::size_t segment_bytes,
                           std::shared_ptr<SharedWindow>& window) = 0;

  /// The GPUs of this process; null if Kolo was built without CUDA.
  virtual Gpus* gpus() { return nullptr; }

  /// The ranks of this node whose processes have ended so far. Never blocks; any thread.
  virtual std::vector<int> dead_peers() = 0;

  /// A peer is lost: from now on the communication library must not be waited for. The destructor
  /// does not finalize it and abandons transfers in flight.
  virtual void mark_broken() noexcept = 0;
};

}  // namespace kolo::comm
