#pragma once

#include <functional>
#include <iosfwd>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "common/statistics.hpp"

namespace examples {

/// How much of the speed without communication is left with it.
struct Efficiency {
  std::vector<double> shares;  ///< of each pair of blocks: time without ÷ time with communication
  double median = 0;
  Interval interval{};         ///< of the median, 95 %
  double step_ms_without = 0;  ///< medians over the blocks
  double step_ms_with = 0;
};

/// Runs nine pairs of blocks, one of `step_without` and one of `step_with` communication, in turns,
/// so that whatever else slows the machine meets both. Blocks last about a second; the ranks begin
/// each together, and its time is the mean over them. Collective.
Efficiency measure_efficiency(const std::function<void()>& step_without,
                              const std::function<void()>& step_with);

nlohmann::ordered_json to_json(const Efficiency& efficiency);

/// As one line: "efficiency 96.2 % (95 % interval 95.1 to 97.0 %): …".
std::ostream& operator<<(std::ostream& stream, const Efficiency& efficiency);

}  // namespace examples
