#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/message_rings.hpp"
#include "comm/peer_liveness.hpp"
#include "comm/ucx_messages.hpp"
#include "comm/world.hpp"
#include "kolo/config.hpp"
#include "kolo/store.hpp"

namespace kolo::comm {

/// How ranks that no MPI connects find each other.
struct Rendezvous {
  std::shared_ptr<Store> store;
  int rank = 0;
  int size = 1;
};

/// Processes that find each other in a Store, whoever started them. Messages travel through shared
/// memory within a host and over UCX between hosts.
class RendezvousWorld final : public World {
 public:
  /// Collective. Throws InvalidArgument for a rank and a size that cannot be, and if another
  /// process starts as the same rank meanwhile; TimeoutError, which names the ranks that have not
  /// come within KOLO_START_TIMEOUT; PeerLostError if one of this host dies meanwhile;
  /// BackendError, on all ranks, if one cannot make or map shared memory or lacks UCX; and whatever
  /// the store throws.
  RendezvousWorld(const Config& config, const Rendezvous& rendezvous);

  const Topology& topology() const override { return topology_; }
  std::unique_ptr<Communicator> make_communicator(std::span<const int> ranks, int channel) override;
  Task make_window(Communicator& communicator, int tag, std::size_t segment_bytes,
                   std::shared_ptr<SharedWindow>& window) override;
  Gpus* gpus() override;
  std::vector<int> dead_peers() override { return liveness_->dead(); }
  void mark_broken() noexcept override;

 private:
  std::vector<std::string> addresses_in(const std::vector<std::string>& texts_of_means) const;
  bool is_on_this_host(int rank) const;

  const int rank_;
  std::vector<int> machines_;  // for each rank the lowest one on its host
  Topology topology_;
  std::optional<MessageRings> rings_;
  std::optional<UcxMessages> ucx_;  // if there are several hosts
  std::optional<PeerLiveness> liveness_;
};

}  // namespace kolo::comm
