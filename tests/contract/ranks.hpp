#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

#include "kolo/communicator.hpp"
#include "kolo/shared_window.hpp"
#include "support/fake_world.hpp"

namespace kolo::test {

/// What one rank has for a test of algorithms.
struct Rank {
  int rank;
  Communicator& communicator;
  SharedWindow& window;
  std::uint64_t seed;
};

/// Runs `body` on `size` ranks, each a thread of its own, with messages that come late at random.
/// The seed decides how late, and whether a send waits for its receiver.
inline void run_on_ranks(int size, std::size_t window_bytes, std::uint64_t seed,
                         const std::function<void(const Rank&)>& body) {
  const FakeOptions options{
      .longest_delay = std::chrono::microseconds(40), .seed = seed, .rendezvous = seed % 2 == 0};
  run_ranks(
      size,
      [&](FakeWorld& world) {
        const std::unique_ptr<Communicator> communicator = world.make_communicator();
        std::shared_ptr<SharedWindow> window;
        Task making = world.make_window(*communicator, 0, window_bytes, window);
        while (making.poll() != Progress::Done) std::this_thread::yield();
        body({world.topology().rank, *communicator, *window, seed});
      },
      options);
}

}  // namespace kolo::test
