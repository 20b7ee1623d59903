#include "common/efficiency.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iomanip>
#include <ostream>

#include <nlohmann/json.hpp>

#include "common/agreement.hpp"

namespace examples {
namespace {

constexpr int kPairs = 9;
constexpr int kWarmUpSteps = 3;
constexpr double kBlockSeconds = 1.0;

// Seconds that a step takes, in a block of `steps`; the same on all ranks.
double time_block(const std::function<void()>& step, int steps) {
  using Clock = std::chrono::steady_clock;
  mean_over_ranks(0);  // all begin together
  const auto start = Clock::now();
  for (int i = 0; i < steps; ++i) step();
  const std::chrono::duration<double> seconds = Clock::now() - start;
  return mean_over_ranks(seconds.count() / steps);
}

}  // namespace

Efficiency measure_efficiency(const std::function<void()>& step_without,
                              const std::function<void()>& step_with) {
  time_block(step_with, kWarmUpSteps);
  time_block(step_without, kWarmUpSteps);
  const double step_seconds = time_block(step_without, kWarmUpSteps);
  const int steps = std::max(2, static_cast<int>(std::ceil(kBlockSeconds / step_seconds)));

  Efficiency result;
  std::vector<double> without;
  std::vector<double> with;
  for (int pair = 0; pair < kPairs; ++pair) {
    const bool without_first = pair % 2 == 0;
    if (without_first) without.push_back(time_block(step_without, steps));
    with.push_back(time_block(step_with, steps));
    if (!without_first) without.push_back(time_block(step_without, steps));
    result.shares.push_back(without.back() / with.back());
  }
  result.median = median(result.shares);
  result.interval = median_interval(result.shares);
  result.step_ms_without = 1e3 * median(without);
  result.step_ms_with = 1e3 * median(with);
  return result;
}

nlohmann::ordered_json to_json(const Efficiency& efficiency) {
  return {{"efficiency", efficiency.median},
          {"efficiency_low", efficiency.interval.low},
          {"efficiency_high", efficiency.interval.high},
          {"shares", efficiency.shares},
          {"step_ms_without", efficiency.step_ms_without},
          {"step_ms_with", efficiency.step_ms_with}};
}

std::ostream& operator<<(std::ostream& stream, const Efficiency& efficiency) {
  return stream << std::fixed << std::setprecision(1) << "efficiency " << 100 * efficiency.median
                << " % (95 % interval " << 100 * efficiency.interval.low << " to "
                << 100 * efficiency.interval.high << " %): " << efficiency.step_ms_without
                << " ms a step without communication, " << efficiency.step_ms_with << " ms with\n";
}

}  // namespace examples
