#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "comm/world.hpp"

namespace kolo::test {

class FakeGpuHub;
class FakeGpus;
class FakeNetwork;

/// How the network between fake ranks behaves.
struct FakeOptions {
  int nodes = 1;  ///< contiguous blocks of ranks that share memory
  /// Messages arrive up to this much later, at random from `seed`, in order per (sender, tag).
  std::chrono::microseconds longest_delay{0};
  std::uint64_t seed = 1;
  /// A send is ready only once it has been received, as MPI does with long messages.
  bool rendezvous = false;
  bool has_shared_memory = true;  ///< otherwise make_window fails on all ranks
  int gpus_per_rank = 0;          ///< of which a rank uses one; see FakeGpuHub
  /// As NCCL does without blocking, collectives on GPUs reach their stream only when somebody looks
  /// whether they have: what is put there before comes before them.
  bool late_launches = false;
  /// Collectives start on a GPU in the order of their launch, as NCCL from 2.26 on can. Otherwise
  /// what no event orders is a hazard.
  bool starts_in_order = true;
  bool is_one_gpu = false;  ///< all ranks use the same
};

/// A world whose ranks are threads of one process, each with its own FakeWorld. Windows are plain
/// heap memory that the threads share, so that ThreadSanitizer sees every access.
class FakeWorld final : public comm::World {
 public:
  FakeWorld(std::shared_ptr<FakeNetwork> network, int rank);
  ~FakeWorld() override;

  const comm::Topology& topology() const override { return topology_; }
  std::unique_ptr<Communicator> make_communicator(std::span<const int> ranks, int channel) override;
  Task make_window(Communicator& communicator, int tag, std::size_t segment_bytes,
                   std::shared_ptr<SharedWindow>& window) override;
  /// Those of the whole node, as a process sees them.
  comm::Gpus* gpus() override;
  std::vector<int> dead_peers() override;
  void mark_broken() noexcept override { is_broken_ = true; }

  /// A communicator over all ranks, on channel 0.
  std::unique_ptr<Communicator> make_communicator();
  /// What the GPUs of all ranks share; null where there are none.
  std::shared_ptr<FakeGpuHub> hub() const;
  bool is_broken() const { return is_broken_; }
  /// From now on the other ranks see this one as ended, and nothing more leaves or reaches it.
  void die();
  /// From now on messages pass only between ranks that are unplugged and between those that are
  /// not, as where a host's cable is pulled; nobody sees anyone end.
  void unplug();
  void plug_in();

 private:
  std::shared_ptr<FakeNetwork> network_;
  comm::Topology topology_;
  std::unique_ptr<FakeGpus> gpus_;
  std::mutex dead_lock_;
  std::vector<int> dead_;
  std::atomic<bool> is_broken_{false};
};

/// Runs `body` once per rank, each on a thread of its own, and waits for all. What ranks throw is
/// thrown again as one std::runtime_error whose text names each rank that threw.
void run_ranks(int size, const std::function<void(FakeWorld&)>& body, FakeOptions options = {});

}  // namespace kolo::test
