#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>

#include "support/protocol/scenario.hpp"

namespace kolo::simulator {

/// The result of a simulation.
struct Result {
  std::string violation;  ///< of the specification; empty: none
  std::uint64_t exchanges = 0;
  std::uint64_t negotiations = 0;
  std::uint64_t wake_up_requests = 0;
  std::uint64_t fruitless_exchanges = 0;
  std::uint64_t events = 0;
  std::uint64_t outcomes = 0;  ///< uses that ran or failed, each counted once for all ranks
  int finished = 0;            ///< ranks whose program reached its end
};

/// Runs the coordinators of all ranks of `scenario` in virtual time until no more events are
/// possible, or until the specification is violated. The same scenario gives the same result. If
/// given, `trace` receives one line per event.
Result simulate(const Scenario& scenario, std::ostream* trace = nullptr);

}  // namespace kolo::simulator
