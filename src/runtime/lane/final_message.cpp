#include "runtime/lane/final_message.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/current_exception.hpp"
#include "base/log.hpp"

namespace kolo::runtime {
namespace {

// Peers look at their header_exchanges at least once in 50 ms. mpirun ends them soon after this process has
// ended, so they are given time to see and print the text first.
constexpr auto kTimeToBeHeard = std::chrono::milliseconds(400);

struct Enlisted {
  std::mutex lock;
  std::vector<std::shared_ptr<Lane>> lanes;
  std::terminate_handler previous = nullptr;
};

Enlisted& enlisted() {
  static auto* const instance = new Enlisted;  // outlives static destructors, which may terminate
  return *instance;
}

std::string describe_current_exception() {
  if (std::current_exception() == nullptr) return "called std::terminate";
  return "ended with an uncaught exception: " + text_of_current_exception();
}

/// Not in a forked child: its end is nobody's business but its parent's.
bool any_is_at_home(const std::vector<std::shared_ptr<Lane>>& lanes) {
  return std::ranges::any_of(lanes, [](const auto& lane) { return lane->is_at_home(); });
}

[[noreturn]] void speak_and_terminate() {
  const std::string how = describe_current_exception();
  Enlisted& all = enlisted();
  const std::unique_lock lock(all.lock, std::try_to_lock);
  if (lock.owns_lock() && any_is_at_home(all.lanes)) {
    // Here first: once the others have heard and end, mpirun may end this process at any moment.
    KOLO_LOG(Error) << how;
    for (const auto& lane : all.lanes) lane->publish_end(how);
    std::this_thread::sleep_for(kTimeToBeHeard);
  }
  if (all.previous != nullptr) all.previous();
  std::abort();
}

}  // namespace

void register_for_final_message(std::shared_ptr<Lane> lane) {
  Enlisted& all = enlisted();
  const std::lock_guard lock(all.lock);
  if (all.previous == nullptr) all.previous = std::set_terminate(speak_and_terminate);
  all.lanes.push_back(std::move(lane));
}

void unregister_from_final_message(const std::shared_ptr<Lane>& lane) {
  Enlisted& all = enlisted();
  const std::lock_guard lock(all.lock);
  std::erase(all.lanes, lane);
}

}  // namespace kolo::runtime
