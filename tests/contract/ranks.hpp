#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "contract/scattered_nodes.hpp"
#include "kolo/algorithm.hpp"
#include "kolo/communicator.hpp"
#include "kolo/shared_window.hpp"
#include "support/fake_world/fake_world.hpp"

namespace kolo::test {

/// One rank in a test of algorithms.
struct Rank {
  int rank;
  Communicator& communicator;
  SharedWindow& window;
  const Nodes* nodes;  ///< null if all ranks share one node
  std::uint64_t seed;
};

/// Runs `body` once per entry of `node_of_rank`, each rank as a thread. Messages have random
/// delays. The seed determines them, and whether a send waits for its receiver.
inline void run_on_nodes(const std::vector<int>& node_of_rank, std::size_t window_bytes,
                         std::uint64_t seed, const std::function<void(const Rank&)>& body) {
  const FakeOptions options{
      .longest_delay = std::chrono::microseconds(40), .seed = seed, .rendezvous = seed % 2 == 0};
  run_ranks(
      static_cast<int>(node_of_rank.size()),
      [&](FakeWorld& world) {
        const auto make_window = [&](Communicator& communicator) {
          std::shared_ptr<SharedWindow> window;
          Task making = world.make_window(communicator, 0, window_bytes, window);
          while (making.poll() != Progress::Done) std::this_thread::yield();
          return window;
        };
        const int self = world.topology().rank;
        const auto node_of = [&](int rank) { return node_of_rank[static_cast<std::size_t>(rank)]; };
        std::vector<int> members;
        for (int rank = 0; rank < world.topology().size; ++rank) {
          if (node_of(rank) == node_of(self)) members.push_back(rank);
        }
        const std::unique_ptr<Communicator> communicator = world.make_communicator();
        const std::shared_ptr<SharedWindow> window = make_window(*communicator);
        const std::unique_ptr<Communicator> inside = world.make_communicator(members, 1);
        const std::shared_ptr<SharedWindow> node_window = make_window(*inside);
        const Nodes nodes{.node_of_rank = node_of_rank, .window = node_window.get()};
        const bool is_one = members.size() == node_of_rank.size();
        body({self, *communicator, *window, is_one ? nullptr : &nodes, seed});
      },
      options);
}

/// The same for `size` ranks on scattered nodes.
inline void run_on_ranks(int size, std::size_t window_bytes, std::uint64_t seed,
                         const std::function<void(const Rank&)>& body) {
  run_on_nodes(scattered_nodes(size), window_bytes, seed, body);
}

}  // namespace kolo::test
