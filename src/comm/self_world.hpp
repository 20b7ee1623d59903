#pragma once

#include "comm/world.hpp"

namespace kolo::comm {

/// A world of one rank, without MPI.
class SelfWorld final : public World {
 public:
  const Topology& topology() const override { return topology_; }
  std::unique_ptr<Communicator> make_communicator(std::span<const int> ranks, int channel) override;
  Task make_window(Communicator& communicator, int tag, std::size_t segment_bytes,
                   std::shared_ptr<SharedWindow>& window) override;
  Gpus* gpus() override;
  std::vector<int> dead_peers() override { return {}; }
  void mark_broken() noexcept override {}

 private:
  Topology topology_;
};

}  // namespace kolo::comm
