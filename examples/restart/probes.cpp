#include "restart/probes.hpp"

#include <algorithm>
#include <functional>

namespace restart {
namespace {

/// Waits until `is_done`, a signal asks this program to end, or time is up.
void wait_until(Children& children, milliseconds limit, const std::function<bool()>& is_done) {
  const Clock::time_point end = Clock::now() + limit;
  while (!is_done() && children.end_signal() == 0 && Clock::now() < end) {
    children.wait(std::chrono::ceil<milliseconds>(end - Clock::now()));
    while (children.next_signal()) continue;  // no job runs that others could be for
  }
}

}  // namespace

std::vector<bool> run_probes(Children& children,
                             const std::vector<std::vector<std::string>>& commands,
                             milliseconds limit, milliseconds grace) {
  std::vector<pid_t> probes;
  for (const auto& command : commands) probes.push_back(children.start_quietly(command));
  wait_until(children, limit, [&] {
    return std::ranges::all_of(probes,
                               [&](pid_t probe) { return children.status_of(probe).has_value(); });
  });
  std::vector<bool> answers;
  for (const pid_t probe : probes) answers.push_back(children.status_of(probe) == 0);
  children.end_all(grace);
  return answers;
}

void rest(Children& children, milliseconds time) {
  wait_until(children, time, [] { return false; });
}

}  // namespace restart
