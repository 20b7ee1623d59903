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

// Peers check for losses at least once in 50 ms. mpirun ends them soon after this process has
// ended, so they get time to read and print the text first.
constexpr auto kTimeToPrint = std::chrono::milliseconds(400);

struct Registered {
  std::mutex lock;
  std::vector<std::shared_ptr<Lane>> lanes;
  std::terminate_handler previous = nullptr;
};

Registered& registered() {
  static auto* const instance = new Registered;  // outlives static destructors, which may terminate
  return *instance;
}

std::string describe_current_exception() {
  if (std::current_exception() == nullptr) return "called std::terminate";
  return "ended with an uncaught exception: " + text_of_current_exception();
}

/// False in a forked child, whose end concerns its parent only.
bool any_is_in_creator_process(const std::vector<std::shared_ptr<Lane>>& lanes) {
  return std::ranges::any_of(lanes, [](const auto& lane) { return lane->is_in_creator_process(); });
}

[[noreturn]] void send_final_message_and_terminate() {
  const std::string how = describe_current_exception();
  Registered& all = registered();
  const std::unique_lock lock(all.lock, std::try_to_lock);
  if (lock.owns_lock() && any_is_in_creator_process(all.lanes)) {
    // Log first: once the peers know and end, mpirun may end this process at any moment.
    KOLO_LOG(Error) << how;
    for (const auto& lane : all.lanes) lane->publish_end(how);
    std::this_thread::sleep_for(kTimeToPrint);
  }
  if (all.previous != nullptr) all.previous();
  std::abort();
}

}  // namespace

void register_for_final_message(std::shared_ptr<Lane> lane) {
  Registered& all = registered();
  const std::lock_guard lock(all.lock);
  if (all.previous == nullptr) all.previous = std::set_terminate(send_final_message_and_terminate);
  all.lanes.push_back(std::move(lane));
}

void unregister_from_final_message(const std::shared_ptr<Lane>& lane) {
  Registered& all = registered();
  const std::lock_guard lock(all.lock);
  std::erase(all.lanes, lane);
}

}  // namespace kolo::runtime
