#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "comm/wait.hpp"
#include "comm/world.hpp"
#include "insight/insight.hpp"
#include "kolo/config.hpp"
#include "kolo/process_set.hpp"
#include "runtime/data/set_context.hpp"
#include "runtime/device/launch_queue.hpp"
#include "runtime/engine/engine.hpp"

namespace kolo::runtime {

/// Creates the engines of process sets, with their communicators and shared memory. The arguments
/// must live until the engines have ended.
class EngineFactory {
 public:
  EngineFactory(comm::World& world, const Config& config, Choices choices)
      : world_(world), config_(config), choices_(choices) {}

  /// The communicator of the control plane of a set, for use before its engine exists.
  std::unique_ptr<Communicator> make_control_communicator(int number,
                                                          const std::vector<int>& ranks);

  /// Makes the engine of the process set `number`, a number that no other live set has, over the
  /// world ranks `ranks`: ascending, this rank among them. Collective over these ranks and
  /// blocking. `world`: the world's engine, which knows of lost ranks; null for the world itself.
  /// Other sets are returned once all members have made theirs. Throws InvalidArgument on all
  /// members; TimeoutError after KOLO_TIMEOUT, for the world after KOLO_START_TIMEOUT;
  /// PeerLostError, BackendError, std::system_error.
  std::shared_ptr<Engine> make(int number, const std::vector<int>& ranks, Matching matching,
                               const std::shared_ptr<Engine>& world,
                               std::shared_ptr<insight::Insight> insight);

 private:
  /// The ranks of an engine that is being made, and how long each step waits for them.
  struct Members {
    comm::NeededRanks ranks;
    std::chrono::nanoseconds timeout;
  };

  /// For ranks that may never come: KOLO_LOST_AFTER, or its default where that is 0.
  std::chrono::nanoseconds longest_wait() const;
  /// Has the ranks of `parts` read in each other's messages and shared memory what they run.
  void match_by_order(Engine::Parts& parts, const Members& members);
  void find_gpus(Engine::Parts& parts);
  void share_memory(Engine::Parts& parts, int number, const Members& members);
  void share_memory_inside_nodes(Engine::Parts& parts, int number, const Members& members);
  static void wait(Task task, const Members& members);
  bool is_true_on_all(bool holds, Communicator& communicator, const Members& members);
  std::shared_ptr<SharedWindow> make_window(Communicator& communicator, std::size_t bytes,
                                            const Members& members, std::string& problem);
  std::shared_ptr<SharedWindow> make_staging(Communicator& neighbours, Communicator& everybody,
                                             const Members& members, const char* purpose);

  comm::World& world_;
  const Config& config_;
  Choices choices_;
  LaunchQueue launches_;
};

}  // namespace kolo::runtime
