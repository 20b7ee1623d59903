#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "comm/world.hpp"
#include "kolo/communicator.hpp"

/// Messages between all ranks, for the contracts of communicators and transfers.
namespace kolo::test {

inline void finish(Transfer& transfer) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!transfer.ready()) {
    if (std::chrono::steady_clock::now() > deadline) {
      throw std::runtime_error("a transfer did not end within 30 s");
    }
    std::this_thread::yield();
  }
}

inline void finish_all(std::vector<Transfer>& transfers) {
  for (Transfer& transfer : transfers) finish(transfer);
}

inline Communicator::Envelope wait_for_message(Communicator& communicator, int tag) {
  for (;;) {
    if (const auto envelope = communicator.probe(tag)) return *envelope;
    std::this_thread::yield();
  }
}

inline std::unique_ptr<Communicator> everybody(comm::World& world, int channel = 0) {
  std::vector<int> ranks(static_cast<std::size_t>(world.topology().size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return world.make_communicator(ranks, channel);
}

/// The i-th byte of message `number` from `source` to `destination`.
inline std::byte pattern(int source, int destination, int number, std::size_t i) {
  const std::size_t value = i * 31 + static_cast<std::size_t>(source) * 7 +
                            static_cast<std::size_t>(destination) * 13 +
                            static_cast<std::size_t>(number) * 101 + (i >> 8);
  return static_cast<std::byte>(value & 0xff);
}

inline std::vector<std::byte> message(int source, int destination, int number, std::size_t size) {
  std::vector<std::byte> data(size);
  constexpr std::size_t kPeriod = 1 << 16;  // of the pattern
  const std::size_t computed = std::min(size, kPeriod);
  for (std::size_t i = 0; i < computed; ++i) data[i] = pattern(source, destination, number, i);
  for (std::size_t i = kPeriod; i < size; i += kPeriod) {
    std::copy_n(data.begin(), std::min(size - i, kPeriod), data.data() + i);
  }
  return data;
}

/// The type parameter of its suites has
///   static std::vector<int> sizes();   world sizes that it can run
///   static void run(int size, const std::function<void(comm::World&)>& body);   body on every rank
template <class Ranks>
class OnEveryRank : public testing::Test {
 protected:
  /// Runs `body` on every rank of every world, with a communicator over all of them.
  void on_every_rank(const std::function<void(Communicator&, comm::World&)>& body) {
    for (const int size : Ranks::sizes()) {
      SCOPED_TRACE("world of " + std::to_string(size));
      Ranks::run(size, [&](comm::World& world) {
        const std::unique_ptr<Communicator> communicator = everybody(world);
        body(*communicator, world);
      });
    }
  }
};

}  // namespace kolo::test
