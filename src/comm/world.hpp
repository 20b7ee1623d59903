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

/// All that the runtime needs of the world outside: messages, shared memory, and who is alive.
/// One object per rank: MpiWorld in a process under mpirun, SelfWorld without one, FakeWorld for
/// ranks that are threads of one process.
class World {
 public:
  virtual ~World() = default;

  virtual const Topology& topology() const = 0;

  /// A communicator over `ranks` (world ranks, ascending, this rank among them) with tags of its
  /// own. A local call; all members make it with the same `channel`, which no other live
  /// communicator of an overlapping group has. Channels count from 0.
  virtual std::unique_ptr<Communicator> make_communicator(std::span<const int> ranks,
                                                          int channel) = 0;

  /// Makes a window with `segment_bytes` usable bytes a rank among the ranks of `communicator`,
  /// which all run on one node. Collective; uses the communicator's tag `tag` meanwhile. When the
  /// Task has ended `window` is set. Throws BackendError, on all ranks alike, when any of them
  /// cannot make, fill or map its memory; then nothing is left behind.
  virtual Task make_window(Communicator& communicator, int tag, std::size_t segment_bytes,
                           std::shared_ptr<SharedWindow>& window) = 0;

  /// The GPUs of this process; null where Kolo was built without CUDA.
  virtual Gpus* gpus() { return nullptr; }

  /// The ranks of this node whose processes have ended so far, each named from then on. Never
  /// blocks. May be called by any thread.
  virtual std::vector<int> dead_peers() = 0;

  /// Says that a peer is lost: from now on nothing may be awaited of the library below, so that
  /// the destructor must not finalise it and abandons what is under way.
  virtual void mark_broken() noexcept = 0;
};

}  // namespace kolo::comm
