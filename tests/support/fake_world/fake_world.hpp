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
class FakeNetwork;
class FakeWorld;

/// How the network between fake ranks behaves.
struct FakeOptions {
  int nodes = 1;  ///< contiguous blocks of ranks that share memory
  /// A message's random delay is at most this, drawn from `seed`. Order holds per (sender, tag).
  std::chrono::microseconds longest_delay{0};
  bool has_virtual_time = false;  ///< messages arrive as FakeNetwork::advance() says
  std::uint64_t seed = 1;
  /// A send completes only once it has been received, as long messages do in MPI.
  bool rendezvous = false;
  bool has_shared_memory = true;  ///< otherwise make_window fails on all ranks
  int gpus_per_rank = 0;          ///< a rank uses one of them; see FakeGpuHub
  /// Like a non-blocking NCCL, a collective reaches its stream only when the communicator is
  /// polled: work enqueued before the poll runs ahead of it.
  bool late_launches = false;
  bool is_one_gpu = false;  ///< all ranks use the same one
  /// Makes a rank's GPUs in place of FakeGpus; see ThreadGpus.
  std::function<std::unique_ptr<comm::Gpus>(FakeWorld&)> make_gpus{};
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
  /// The GPUs of the whole node, as a process sees them.
  comm::Gpus* gpus() override;
  std::vector<int> dead_peers() override;
  void mark_broken() noexcept override { is_broken_ = true; }

  /// A communicator over all ranks, on channel 0.
  std::unique_ptr<Communicator> make_communicator();
  /// The hub of all ranks' GPUs; null without GPUs.
  std::shared_ptr<FakeGpuHub> hub() const;
  bool is_broken() const { return is_broken_; }
  /// From now on other ranks see this rank as ended, and it neither sends nor receives.
  void die();
  /// From now on messages pass only among unplugged ranks, and among the others, as when a host's
  /// network cable is pulled. No rank appears to have ended.
  void unplug();
  void plug_in();

 private:
  std::shared_ptr<FakeNetwork> network_;
  comm::Topology topology_;
  std::unique_ptr<comm::Gpus> gpus_;
  std::mutex dead_mutex_;
  std::vector<int> dead_;
  std::atomic<bool> is_broken_{false};
};

/// Runs `body` once per rank, each on its own thread, and waits for all of them. If ranks throw,
/// throws one std::runtime_error whose text names each of them.
void run_ranks(int size, const std::function<void(FakeWorld&)>& body, FakeOptions options = {});

}  // namespace kolo::test
