#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "comm/launcher.hpp"
#include "comm/rendezvous_world.hpp"
#include "support/memory_store.hpp"
#include "support/sanitizers.hpp"

namespace kolo::test {

/// Runs `body` on a thread for each rank; throws what the first one has thrown.
inline void run_threads(int size, const std::function<void(int rank)>& body) {
  comm::note_start(std::nullopt);  // sets a variable, while no thread reads any
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(size));
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          body(rank);
        } catch (...) {
          errors[static_cast<std::size_t>(rank)] = std::current_exception();
        }
      });
    }
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

struct RanksOfAStore {
  static std::vector<int> sizes() { return {1, 2, 3, kIsSanitized ? 5 : 66}; }
  static void run(int size, const std::function<void(comm::World&)>& body) {
    const auto store = std::make_shared<MemoryStore>();
    run_threads(size, [&](int rank) {
      comm::RendezvousWorld world(Config{}, {.store = store, .rank = rank, .size = size});
      body(world);
    });
  }
};

}  // namespace kolo::test
