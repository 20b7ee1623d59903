#pragma once

#include <cstddef>
#include <string>

namespace bench {

/// What this process may use of the machine it runs on.
struct Machine {
  std::string cpu;     ///< the processor's name
  std::string system;  ///< kernel and release
  int cpus = 1;        ///< hardware threads that this process may run on
  int cores = 1;       ///< cores that they belong to
  double quota = 0;    ///< cores' worth of time that the control group grants; 0: no limit
  std::size_t memory_bytes = 0;

  /// Ranks that can run at once, each on a core of its own.
  int usable_cores() const;
};

Machine look_at_machine();

}  // namespace bench
