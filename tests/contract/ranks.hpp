#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "contract/scattered_nodes.hpp"
#include "kolo/algorithm.hpp"
#include "kolo/communicator.hpp"
#include "kolo/shared_window.hpp"
#include "support/fake_world/fake_network.hpp"
#include "support/fake_world/fake_world.hpp"
#include "support/sanitizers.hpp"

namespace kolo::test {

/// One rank in a test of algorithms.
struct Rank {
  int rank;
  Communicator& communicator;
  SharedWindow& window;
  const Nodes* nodes;  ///< null if all ranks share one node
  std::uint64_t seed;
  const std::atomic<bool>& any_has_failed;  ///< a rank threw, so that others may wait forever
};

inline std::mt19937_64 random_of(const Rank& rank) {
  return std::mt19937_64(rank.seed * 1009 + static_cast<std::uint64_t>(rank.rank));
}

/// Polls `task` of `rank` until it ends, with random pauses that vary how ranks meet.
inline void finish(Task task, const Rank& rank, std::mt19937_64& random) {
  while (task.poll() != Progress::Done) {
    if (rank.any_has_failed) throw std::runtime_error("stopped, since another rank has failed");
    if (random() % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 20));
    std::this_thread::yield();
  }
}

/// How the ranks of a test run.
enum class Schedule {
  Threads,      ///< each on its own, so that ThreadSanitizer sees races
  Interleaved,  ///< on one thread in a random order, which the seed determines; without the cost of
                ///< switching threads
};
inline constexpr Schedule kFastestSchedule =
    kIsThreadSanitized ? Schedule::Threads : Schedule::Interleaved;

/// What one rank needs to run algorithms.
class RankResources {
 public:
  RankResources(FakeWorld& world, const std::vector<int>& node_of_rank,
                const std::atomic<bool>& any_has_failed)
      : world_(world),
        node_of_rank_(node_of_rank),
        any_has_failed_(any_has_failed),
        communicator_(world.make_communicator()),
        inside_(world.make_communicator(local_ranks(), 1)) {}

  Task make_windows(std::size_t bytes) {
    co_await world_.make_window(*communicator_, 0, bytes, window_);
    co_await world_.make_window(*inside_, 0, bytes, node_window_);
    nodes_ = {.node_of_rank = node_of_rank_, .window = node_window_.get()};
  }

  Rank rank(std::uint64_t seed) const {
    const bool is_one_node = inside_->size() == communicator_->size();
    return {communicator_->rank(),           *communicator_, *window_,
            is_one_node ? nullptr : &nodes_, seed,           any_has_failed_};
  }

 private:
  std::vector<int> local_ranks() const {
    const auto node_of = [&](int rank) { return node_of_rank_[static_cast<std::size_t>(rank)]; };
    std::vector<int> ranks;
    for (int rank = 0; rank < world_.topology().size; ++rank) {
      if (node_of(rank) == node_of(world_.topology().rank)) ranks.push_back(rank);
    }
    return ranks;
  }

  FakeWorld& world_;
  const std::vector<int>& node_of_rank_;
  const std::atomic<bool>& any_has_failed_;
  std::unique_ptr<Communicator> communicator_;
  std::unique_ptr<Communicator> inside_;  // its node
  std::shared_ptr<SharedWindow> window_;
  std::shared_ptr<SharedWindow> node_window_;
  Nodes nodes_{};
};

inline FakeOptions contract_options(std::uint64_t seed) {
  return {
      .longest_delay = std::chrono::microseconds(40), .seed = seed, .rendezvous = seed % 2 == 0};
}

/// Runs `body` once per entry of `node_of_rank`, each rank as a thread. Messages have random
/// delays. The seed determines them, and whether a send waits for its receiver. If a rank throws,
/// finish() throws on the others.
inline void run_on_nodes(const std::vector<int>& node_of_rank, std::size_t window_bytes,
                         std::uint64_t seed, const std::function<void(const Rank&)>& body) {
  std::atomic<bool> any_has_failed{false};
  run_ranks(
      static_cast<int>(node_of_rank.size()),
      [&](FakeWorld& world) {
        try {
          RankResources resources(world, node_of_rank, any_has_failed);
          Task making = resources.make_windows(window_bytes);
          while (making.poll() != Progress::Done) std::this_thread::yield();
          body(resources.rank(seed));
        } catch (...) {
          any_has_failed = true;
          throw;
        }
      },
      contract_options(seed));
}

/// The same for `size` ranks on scattered nodes.
inline void run_on_ranks(int size, std::size_t window_bytes, std::uint64_t seed,
                         const std::function<void(const Rank&)>& body) {
  run_on_nodes(scattered_nodes(size), window_bytes, seed, body);
}

/// What a rank does, without blocking.
using RankTask = std::function<Task(const Rank&)>;

/// Polls the tasks of all ranks until they have ended. A rank may be polled several times before
/// another is. Throws if none can go on.
inline void poll_interleaved(std::vector<Task> tasks, FakeNetwork& network,
                             std::mt19937_64& random) {
  // In that many microseconds of virtual time, all messages have arrived.
  constexpr int kMaxIdlePolls = 1'000'000;
  int idle_polls = 0;
  std::vector<std::size_t> ranks(tasks.size());
  std::iota(ranks.begin(), ranks.end(), std::size_t{0});
  while (!ranks.empty()) {
    const std::size_t next = random() % ranks.size();
    for (std::size_t polls = 1 + random() % 4; polls > 0; --polls) {
      network.advance(std::chrono::microseconds(1));
      const Progress progress = tasks[ranks[next]].poll();
      idle_polls = progress == Progress::Waiting ? idle_polls + 1 : 0;
      if (progress != Progress::Done) continue;
      ranks.erase(ranks.begin() + static_cast<std::ptrdiff_t>(next));
      break;
    }
    if (idle_polls > kMaxIdlePolls) {
      throw std::runtime_error("no rank can go on; these still wait: " +
                               testing::PrintToString(ranks));
    }
  }
}

/// Runs a task of each rank of `node_of_rank`, as run_on_nodes().
inline void run_tasks_on_nodes(const std::vector<int>& node_of_rank, std::size_t window_bytes,
                               std::uint64_t seed, const RankTask& make_task,
                               Schedule schedule = kFastestSchedule) {
  if (schedule == Schedule::Threads) {
    run_on_nodes(node_of_rank, window_bytes, seed, [&](const Rank& rank) {
      std::mt19937_64 random = random_of(rank);
      finish(make_task(rank), rank, random);
    });
    return;
  }
  FakeOptions options = contract_options(seed);
  options.has_virtual_time = true;
  const auto size = static_cast<int>(node_of_rank.size());
  const auto network = std::make_shared<FakeNetwork>(size, options);
  const auto run_rank = [&](RankResources& resources) -> Task {
    co_await resources.make_windows(window_bytes);
    const Rank rank = resources.rank(seed);
    co_await make_task(rank);
  };
  const std::atomic<bool> any_has_failed{false};  // poll_interleaved throws at once
  std::deque<FakeWorld> worlds;
  std::deque<RankResources> resources;
  std::vector<Task> tasks;
  for (int rank = 0; rank < size; ++rank) {
    resources.emplace_back(worlds.emplace_back(network, rank), node_of_rank, any_has_failed);
    tasks.push_back(run_rank(resources.back()));
  }
  std::mt19937_64 random(seed);
  poll_interleaved(std::move(tasks), *network, random);
}

/// The same for `size` ranks on scattered nodes.
inline void run_tasks_on_ranks(int size, std::size_t window_bytes, std::uint64_t seed,
                               const RankTask& make_task, Schedule schedule = kFastestSchedule) {
  run_tasks_on_nodes(scattered_nodes(size), window_bytes, seed, make_task, schedule);
}

}  // namespace kolo::test
