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

constexpr int kWarmUpSteps = 3;
constexpr double kBlockSeconds = 1.0;

// Seconds per step in a block of `steps`; the same on all ranks.
double time_block(const std::function<void()>& step, const std::function<void()>& finish,
                  const std::function<double()>& clock, int steps) {
  mean_over_ranks(0);  // all begin together
  const double start = clock();
  for (int i = 0; i < steps; ++i) step();
  finish();
  return mean_over_ranks((clock() - start) / steps);
}

/// The ratio of the two blocks of each round.
Share share(const std::vector<double>& without, const std::vector<double>& with) {
  std::vector<double> shares;
  for (std::size_t i = 0; i < with.size(); ++i) shares.push_back(without[i] / with[i]);
  return {median(shares), median_interval(shares)};
}

}  // namespace

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Efficiency measure_efficiency(const std::function<void()>& step_without,
                              const std::function<void()>& step_with,
                              const std::function<void()>& finish, int rounds,
                              const std::function<double()>& clock) {
  const auto time_block = [&](const std::function<void()>& step, int steps) {
    return examples::time_block(step, finish, clock, steps);
  };
  const auto step_meeting = [&] {
    step_without();
    mean_over_ranks(0);
  };
  time_block(step_with, kWarmUpSteps);
  time_block(step_without, kWarmUpSteps);
  const double step_seconds = time_block(step_without, kWarmUpSteps);
  const int steps = std::max(2, static_cast<int>(std::ceil(kBlockSeconds / step_seconds)));

  std::vector<double> without;
  std::vector<double> meeting;
  std::vector<double> with;
  for (int round = 0; round < rounds; ++round) {
    for (int turn = 0; turn < 3; ++turn) {
      switch ((turn + round) % 3) {
        case 0: without.push_back(time_block(step_without, steps)); break;
        case 1: meeting.push_back(time_block(step_meeting, steps)); break;
        default: with.push_back(time_block(step_with, steps));
      }
    }
  }
  return {.of_independent = share(without, with),
          .of_meeting = share(meeting, with),
          .step_ms_without = 1e3 * median(without),
          .step_ms_meeting = 1e3 * median(meeting),
          .step_ms_with = 1e3 * median(with)};
}

nlohmann::ordered_json to_json(const Efficiency& efficiency) {
  return {{"efficiency", efficiency.of_independent.median},
          {"efficiency_low", efficiency.of_independent.interval.low},
          {"efficiency_high", efficiency.of_independent.interval.high},
          {"efficiency_meeting", efficiency.of_meeting.median},
          {"efficiency_meeting_low", efficiency.of_meeting.interval.low},
          {"efficiency_meeting_high", efficiency.of_meeting.interval.high},
          {"step_ms_without", efficiency.step_ms_without},
          {"step_ms_meeting", efficiency.step_ms_meeting},
          {"step_ms_with", efficiency.step_ms_with}};
}

std::ostream& operator<<(std::ostream& stream, const Efficiency& efficiency) {
  const auto print = [&](const Share& share) {
    stream << 100 * share.median << " % (95 % interval " << 100 * share.interval.low << " to "
           << 100 * share.interval.high << " %)";
  };
  stream << std::fixed << std::setprecision(1) << "efficiency ";
  print(efficiency.of_independent);
  stream << ": " << efficiency.step_ms_with << " ms a step, " << efficiency.step_ms_without
         << " ms without communication; ";
  print(efficiency.of_meeting);
  return stream << " of steps after which the ranks only wait for one another, "
                << efficiency.step_ms_meeting << " ms\n";
}

}  // namespace examples
