#include "restart/plan.hpp"

#include <algorithm>
#include <utility>

namespace restart {

Plan::Plan(const Limits& limits, std::vector<Host> hosts)
    : limits_(limits), hosts_(std::move(hosts)) {}

std::string Plan::note_failure(std::string_view node, std::string_view here) {
  const auto blamed = std::ranges::find_if(hosts_, [&](const Host& host) {
    return !node.empty() && is_same_host(host.name, node, here);
  });
  std::string name = blamed == hosts_.end() ? "" : blamed->name;
  failures_ = name == blamed_ ? failures_ + 1 : 1;
  blamed_ = name;
  if (name.empty() || failures_ < limits_.host_failures) return "";
  if (count_slots(hosts_) - blamed->slots < limits_.min_ranks) return "";
  hosts_.erase(blamed);
  return name;
}

Attempt Plan::next(const std::vector<bool>& answers) const {
  if (hosts_.empty()) return {limits_.ranks, {}};
  Attempt attempt{.ranks = 0};
  for (std::size_t i = 0; i < hosts_.size(); ++i) {
    if (answers[i]) attempt.hosts.push_back(hosts_[i]);
  }
  attempt.ranks = std::min(limits_.ranks, count_slots(attempt.hosts));
  return attempt;
}

std::chrono::milliseconds pause_before(int number, std::chrono::milliseconds first) {
  const std::chrono::milliseconds longest = std::max(first, std::chrono::milliseconds(60'000));
  std::chrono::milliseconds pause = first;
  for (int i = 1; i < number && pause < longest && pause.count() > 0; ++i) pause *= 2;
  return std::min(pause, longest);
}

}  // namespace restart
