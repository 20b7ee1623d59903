#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "support/protocol/scenario.hpp"
#include "support/random.hpp"

namespace kolo::simulator {

inline Time microseconds(std::int64_t count) { return Time{count * 1'000}; }

/// How the ranks run a round, which is a list of names.
enum class Style {
  Async,     // submit all, then wait for all
  Blocking,  // wait for each
  Mixed,     // wait for some earlier one occasionally
  Permuted,  // each rank has its own fixed order; wait at the end
  Shuffled,  // each rank has a new order every round; wait at the end
  Lazy,      // wait only where a name is submitted again
};

/// The choices made while a scenario is generated.
struct Grammar {
  Random random;
  Scenario scenario;
  Style style = Style::Async;
  std::vector<std::vector<int>> orders;  // of the rounds, used in turn
  int rounds_per_order = 1;              // before the next order is used
  int rounds = 1;
  bool may_deadlock = false;
  bool all_have_timeouts = false;

  explicit Grammar(std::uint64_t seed) : random(seed) { scenario.seed = seed ^ 0x5eed; }

  bool one_in(int count) { return random.one_in(count); }
  Program& program(int rank) { return scenario.programs[static_cast<std::size_t>(rank)]; }

  std::string title() const;
  void choose_world();
  void choose_requests(int names);
  runtime::Request make_request(int name);
  void vary(runtime::Request& request);
  void choose_orders(int names);
  void choose_delays();
  void write_round(int rank, int round, const std::vector<int>& own_permutation);
  void write_programs(int from_round, int to_round, const std::vector<int>& rounds_less);
  void settle();
  void choose_settling_orders();
  void disturb();
  void add_timeouts();
  void add_skips();
  void add_mismatches();
  void add_shutdowns();
  void add_faults();
  void add_stragglers();
  void write_joins();
};

}  // namespace kolo::simulator
