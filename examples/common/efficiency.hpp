#pragma once

#include <functional>
#include <iosfwd>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "common/statistics.hpp"

namespace examples {

/// A fraction of the speed: the median of the measurements.
struct Share {
  double median = 0;
  Interval interval{};  ///< 95 % confidence interval of the median
};

/// The speed with communication relative to that without.
struct Efficiency {
  Share of_independent;        ///< time without ÷ time with communication
  Share of_meeting;            ///< the same, relative to steps with a meeting
  double step_ms_without = 0;  ///< medians over the blocks
  double step_ms_meeting = 0;
  double step_ms_with = 0;
};

/// Seconds since an unspecified time.
double steady_seconds();

/// Runs rounds of three blocks: `step_without` communication, the same with a meeting
/// (synchronization) of all ranks after each step, and `step_with`. Blocks alternate, so that other
/// load on the machine slows all three. The cost of the meeting is unavoidable with any library: no
/// rank can be ahead of the slowest. A block lasts about a second; all ranks begin it together, and
/// its time is the mean over ranks. `finish` waits at the end of a block until the work of its
/// steps is done. `clock` returns the time in seconds. Collective.
Efficiency measure_efficiency(const std::function<void()>& step_without,
                              const std::function<void()>& step_with,
                              const std::function<void()>& finish, int rounds,
                              const std::function<double()>& clock = steady_seconds);

nlohmann::ordered_json to_json(const Efficiency& efficiency);

/// As one line: "efficiency 96.2 % (95 % interval 95.1 to 97.0 %): …".
std::ostream& operator<<(std::ostream& stream, const Efficiency& efficiency);

}  // namespace examples
