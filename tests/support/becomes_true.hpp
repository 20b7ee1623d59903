#pragma once

#include <chrono>
#include <thread>

namespace kolo::test {

/// Waits up to `limit` for a condition that other threads make true. @return whether they did
template <class Condition>
bool becomes_true(Condition condition, std::chrono::nanoseconds limit = std::chrono::minutes(1)) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace kolo::test
