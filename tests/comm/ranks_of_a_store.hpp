#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.hpp"
#include "comm/launcher.hpp"
#include "comm/rendezvous_world.hpp"
#include "kolo/store.hpp"
#include "support/sanitizers.hpp"

namespace kolo::test {

class StoreOfThreads final : public Store {
 public:
  void set(const std::string& key, const std::string& value) override {
    const Lock lock(lock_);
    values_[key] = value;
    has_changed_.notify_all();
  }
  std::optional<std::string> get(const std::string& key,
                                 std::chrono::milliseconds timeout) override {
    const Lock lock(lock_);
    const bool is_there = has_changed_.wait_for(
        lock_, timeout, [&]() KOLO_REQUIRES(lock_) { return values_.contains(key); });
    return is_there ? std::optional(values_[key]) : std::nullopt;
  }

 private:
  Mutex lock_;
  std::condition_variable_any has_changed_;
  std::map<std::string, std::string> values_ KOLO_GUARDED_BY(lock_);
};

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
    const auto store = std::make_shared<StoreOfThreads>();
    run_threads(size, [&](int rank) {
      comm::RendezvousWorld world(Config{}, {.store = store, .rank = rank, .size = size});
      body(world);
    });
  }
};

}  // namespace kolo::test
