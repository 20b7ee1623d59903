// The part of the grammar that generates faults.

#include <algorithm>
#include <utility>

#include "support/protocol/grammar.hpp"

namespace kolo::simulator {

/// Generates a program in which anything may go wrong.
void Grammar::disturb() {
  const std::vector<Style> styles{Style::Async,    Style::Async,    Style::Blocking, Style::Mixed,
                                  Style::Permuted, Style::Shuffled, Style::Lazy};
  style = random.pick(styles);
  choose_delays();
  rounds = random.between(1, 10);
  if (scenario.names.size() > 12) rounds = std::min(rounds, 4);
  const bool has_joins = one_in(4);
  if (has_joins) {
    write_joins();
  } else {
    write_programs(0, rounds, std::vector<int>(static_cast<std::size_t>(scenario.ranks)));
  }
  if (one_in(4)) scenario.table_capacity = static_cast<std::size_t>(random.between(1, 6));
  if (one_in(4)) scenario.table_bits = static_cast<std::size_t>(random.between(1, 6));
  if (one_in(2)) add_stragglers();
  if (one_in(3)) add_mismatches();
  if (one_in(3)) add_skips();
  if (one_in(3)) add_timeouts();
  if (one_in(12)) scenario.stall_warn = microseconds(random.between(1'000, 100'000));
  scenario.must_finish = !may_deadlock || all_have_timeouts;
  if (one_in(6)) add_shutdowns();
  if (one_in(5)) add_faults();
}

void Grammar::write_joins() {
  int round = 0;
  for (int segment = random.between(1, 3); segment > 0; --segment) {
    const int length = random.between(0, 3);
    std::vector<int> less;
    for (int rank = 0; rank < scenario.ranks; ++rank) less.push_back(random.between(0, length));
    write_programs(round, round + length, less);
    for (int rank = 0; rank < scenario.ranks; ++rank) program(rank).push_back({Step::Kind::Join});
    round += length;
  }
  write_programs(round, round + random.between(0, 2),
                 std::vector<int>(static_cast<std::size_t>(scenario.ranks)));
}

void Grammar::add_timeouts() {
  all_have_timeouts = one_in(2);
  const Time longest =
      microseconds(random.pick(std::vector<std::int64_t>{300, 10'000, 1'000'000, 30'000'000}));
  for (Program& steps : scenario.programs) {
    for (Step& step : steps) {
      if (step.kind != Step::Kind::Submit) continue;
      if (all_have_timeouts || one_in(6)) {
        step.time = Time{random.below(longest.count()) + 1'000};
      }
    }
  }
}

void Grammar::add_skips() {
  const bool everywhere = one_in(4);
  const int name = random.between(0, static_cast<int>(scenario.names.size()) - 1);
  for (int rank = 0; rank < scenario.ranks; ++rank) {
    if (!everywhere && !one_in(2)) continue;
    Program kept;
    for (const Step& step : program(rank)) {
      const bool is_skipped = step.kind == Step::Kind::Submit && step.name == name && one_in(2);
      if (!is_skipped) kept.push_back(step);
    }
    program(rank) = kept;
  }
  may_deadlock = true;
}

void Grammar::add_mismatches() {
  for (int count = random.between(1, 3); count > 0; --count) {
    const int name = random.between(0, static_cast<int>(scenario.names.size()) - 1);
    const auto& variants = scenario.names[static_cast<std::size_t>(name)];
    const int variant = random.between(0, static_cast<int>(variants.size()) - 1);
    const int use = random.between(0, 3);
    const bool everywhere = one_in(3);
    const int victim = random.between(0, scenario.ranks - 1);
    for (int rank = 0; rank < scenario.ranks; ++rank) {
      if (!everywhere && rank != victim) continue;
      int seen = 0;
      for (Step& step : program(rank)) {
        if (step.kind == Step::Kind::Submit && step.name == name && seen++ >= use) {
          step.variant = variant;
          if (!everywhere) break;
        }
      }
    }
  }
}

void Grammar::add_shutdowns() {
  const bool all_at_the_end = one_in(2);
  for (int rank = 0; rank < scenario.ranks; ++rank) {
    Program& steps = program(rank);
    if (all_at_the_end) {
      steps.push_back({Step::Kind::ShutDown});
    } else if (rank == scenario.ranks - 1 || one_in(4)) {
      steps.resize(static_cast<std::size_t>(random.between(0, static_cast<int>(steps.size()))));
      steps.push_back({Step::Kind::ShutDown});
      break;
    }
  }
}

void Grammar::add_faults() {
  for (int count = one_in(4) ? 2 : 1; count > 0; --count) {
    Fault fault;
    fault.rank = random.between(0, scenario.ranks - 1);
    const std::vector<Fault::Kind> kinds{Fault::Kind::Die, Fault::Kind::Die,
                                         Fault::Kind::DieWithMessage, Fault::Kind::Freeze};
    fault.kind = random.pick(kinds);
    const int steps = static_cast<int>(program(fault.rank).size());
    fault.after = random.between(1, one_in(3) ? 8 : 4 + 6 * steps);
    if (fault.kind == Fault::Kind::Freeze) {
      all_have_timeouts = true;
      for (Program& others : scenario.programs) {
        for (Step& step : others) {
          if (step.kind == Step::Kind::Submit && step.time == kNever) {
            step.time = microseconds(1'000'000 + random.below(1'000'000));
          }
        }
      }
    }
    scenario.faults.push_back(fault);
  }
  scenario.must_finish = false;
}

void Grammar::add_stragglers() {
  const Time longest =
      microseconds(random.pick(std::vector<std::int64_t>{50, 1'000, 20'000, 500'000}));
  const int often = random.between(2, 20);
  for (int rank = 0; rank < scenario.ranks; ++rank) {
    if (one_in(2)) continue;
    Program slow;
    for (const Step& step : program(rank)) {
      if (one_in(often)) {
        slow.push_back({Step::Kind::Compute, 0, 0, Time{random.below(longest.count())}});
      }
      slow.push_back(step);
    }
    program(rank) = slow;
  }
}

void Grammar::choose_delays() {
  Delays& delays = scenario.delays;
  const std::vector<std::int64_t> bounds{2, 20, 200, 2'000};
  delays.call = microseconds(one_in(3) ? random.pick(bounds) : 1);
  delays.wake = microseconds(random.pick(bounds));
  delays.transfer = microseconds(random.pick(bounds));
  delays.data = microseconds(random.pick(bounds));
  delays.detection = microseconds(random.pick(std::vector<std::int64_t>{20, 2'000, 50'000}));
  if (one_in(3)) {
    delays.long_one_in = random.between(5, 100);
    delays.longest = microseconds(random.pick(std::vector<std::int64_t>{500, 5'000, 30'000}));
  }
  scenario.patience = microseconds(
      random.pick(std::vector<std::int64_t>{0, 100, 5'000, 5'000, 10'000'000, 3'600'000'000}));
  scenario.lost_after = 4 * microseconds(1'000'000);
}

}  // namespace kolo::simulator
