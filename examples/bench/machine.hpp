#pragma once

#include <cstddef>
#include <string>

#include "bench/workload.hpp"
#include "kolo/config.hpp"

namespace bench {

/// The resources of this machine that the process may use.
struct Machine {
  std::string cpu;     ///< the processor's name
  std::string system;  ///< kernel and release
  int cpus = 1;        ///< hardware threads that this process may run on
  int cores = 1;       ///< cores that they belong to
  double quota = 0;    ///< CPU limit of the control group, in cores; 0: none
  std::size_t memory_bytes = 0;

  /// The number of ranks that can run in parallel, each on its own core.
  int usable_cores() const;
};

Machine describe_machine();

/// Prints what limits this machine, and which algorithms Kolo would choose on it for `ranks` ranks.
/// Throws kolo::InvalidArgument if the environment has a malformed setting.
void check_self(int ranks);

/// All of Kolo's settings as text for people: their values and where these come from. Throws
/// kolo::InvalidArgument if the environment has a malformed one.
std::string config_table();

}  // namespace bench
