#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "restart/hosts.hpp"

namespace restart {

/// The ranks and hosts of one start of mpirun.
struct Attempt {
  int ranks = 1;
  std::vector<Host> hosts{};  ///< empty: mpirun chooses them
};

/// Decides the hosts and the number of ranks of each attempt.
class Plan {
 public:
  struct Limits {
    int ranks = 1;
    int min_ranks = 1;
    int host_failures = 2;  ///< in a row, after which a host is given up
  };

  Plan(const Limits& limits, std::vector<Host> hosts);

  Attempt first() const { return {limits_.ranks, hosts_}; }

  /// The hosts that the next attempt may use, and that should be probed before it.
  const std::vector<Host>& hosts() const { return hosts_; }

  /// Notes that a job has failed. Returns the host that is given up because of that, or nothing:
  /// the one that failed too often in a row, if enough ranks are left without it.
  /// @param node the host that may be to blame, as mpirun calls it; empty: none
  /// @param here the name of this machine
  std::string note_failure(std::string_view node, std::string_view here);

  /// The next attempt, given which of hosts() answer. It may have too few ranks.
  Attempt next(const std::vector<bool>& answers) const;
  bool is_possible(const Attempt& attempt) const { return attempt.ranks >= limits_.min_ranks; }

 private:
  Limits limits_;
  std::vector<Host> hosts_;  // without those given up
  std::string blamed_;       // for the last failure
  int failures_ = 0;         // of that host, in a row
};

/// How long to wait before restart `number` (1 for the first): `first`, doubled for each restart
/// before it, up to a minute or `first`, whichever is longer.
std::chrono::milliseconds pause_before(int number, std::chrono::milliseconds first);

}  // namespace restart
