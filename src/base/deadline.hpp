#pragma once

#include <chrono>

namespace kolo {

/// A point in time up to which something may take.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  static Deadline never() { return Deadline(Clock::time_point::max()); }
  static Deadline at(Clock::time_point point) { return Deadline(point); }
  static Deadline after(std::chrono::nanoseconds duration) {
    const auto now = Clock::now();
    return duration < Clock::time_point::max() - now ? Deadline(now + duration) : never();
  }

  bool is_over() const { return Clock::now() >= point_; }
  Clock::time_point point() const { return point_; }

 private:
  explicit Deadline(Clock::time_point point) : point_(point) {}

  Clock::time_point point_;
};

}  // namespace kolo
