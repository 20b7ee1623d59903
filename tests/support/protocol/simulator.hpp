#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>

#include "support/protocol/scenario.hpp"

namespace kolo::simulator {

/// How a simulation went.
struct Result {
  std::string violation;  ///< of the specification; empty: none
  std::uint64_t exchanges = 0;
  std::uint64_t negotiations = 0;
  std::uint64_t wake_up_requests = 0;
  std::uint64_t fruitless_exchanges = 0;
  std::uint64_t events = 0;
  std::uint64_t outcomes = 0;  ///< uses that ran or failed, each counted once for all ranks
  int finished = 0;            ///< ranks whose program came to its end
};

/// Runs the coordinators of all ranks of `scenario` in virtual time until nothing can happen any
/// more, or until the specification is violated. The same scenario gives the same result. Writes
/// what happens to `trace`, one line each, if given.
Result simulate(const Scenario& scenario, std::ostream* trace = nullptr);

}  // namespace kolo::simulator
