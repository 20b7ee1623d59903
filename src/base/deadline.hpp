#pragma once

#include <chrono>

namespace kolo {

/// `time + by`, a point in time or a duration; saturates at the maximum.
template <class Time>
Time later(Time time, std::chrono::nanoseconds by) {
  return by < Time::max() - time ? time + by : Time::max();
}

/// A point in time by which something must be done.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  static Deadline never() { return Deadline(Clock::time_point::max()); }
  static Deadline at(Clock::time_point point) { return Deadline(point); }
  static Deadline after(std::chrono::nanoseconds duration) {
    return Deadline(later(Clock::now(), duration));
  }

  bool has_passed() const { return Clock::now() >= point_; }
  Clock::time_point point() const { return point_; }

 private:
  explicit Deadline(Clock::time_point point) : point_(point) {}

  Clock::time_point point_;
};

}  // namespace kolo
