#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "comm/mpi_duplicate.hpp"
#include "comm/mpi_environment.hpp"
#include "comm/mpi_library.hpp"
#include "comm/peer_liveness.hpp"
#include "comm/start_watch.hpp"
#include "comm/world.hpp"
#include "kolo/config.hpp"

namespace kolo::comm {

/// The processes that mpirun started: messages over MPI; shared memory and liveness within a node.
class MpiWorld final : public World {
 public:
  /// Initializes MPI unless it is running, and determines which ranks share a node. Collective over
  /// the communicator, by default MPI_COMM_WORLD. Throws TimeoutError if not all ranks start within
  /// KOLO_START_TIMEOUT, BackendError, and the errors of mpi_environment::Session.
  explicit MpiWorld(const Config& config, std::optional<MpiHandle> communicator = std::nullopt);
  ~MpiWorld() override;

  const Topology& topology() const override { return topology_; }
  std::unique_ptr<Communicator> make_communicator(std::span<const int> ranks, int channel) override;
  Task make_window(Communicator& communicator, int tag, std::size_t segment_bytes,
                   std::shared_ptr<SharedWindow>& window) override;
  Gpus* gpus() override;
  std::vector<int> dead_peers() override { return liveness_->dead(); }
  void mark_broken() noexcept override;

 private:
  std::optional<StartWatch> start_;  // until all have started
  mpi_environment::Session session_;
  std::unique_lock<Mutex> turn_;  // in the constructor
  MpiDuplicate duplicate_;
  Topology topology_;
  std::optional<PeerLiveness> liveness_;
};

}  // namespace kolo::comm
