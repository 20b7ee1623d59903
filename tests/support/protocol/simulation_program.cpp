// A rank's program: its submissions and waits.

#include <algorithm>

#include "support/protocol/simulation.hpp"

namespace kolo::simulator {

using runtime::UseId;

/// Runs the program until a call blocks or takes time.
void Simulation::call(int rank) {
  Rank& r = at(rank);
  const Program& program = scenario_.programs[static_cast<std::size_t>(rank)];
  if (r.blocked_on) {
    if (!r.uses[*r.blocked_on].is_done) return;
    r.blocked_on.reset();
  }
  while (r.next_step < program.size()) {
    if (!survives_step(rank)) return;
    if (!execute(rank, program[r.next_step])) return;
  }
}

/// False if the program must continue later.
bool Simulation::execute(int rank, const Step& step) {
  Rank& r = at(rank);
  switch (step.kind) {
    case Step::Kind::Submit: {
      auto& in_flight = r.in_flight[static_cast<std::size_t>(step.name)];
      if (in_flight) return !wait_for(rank, *in_flight);
      const UseId use = r.uses.size();
      r.uses.push_back({step.name});
      in_flight = use;
      r.orders.push_back(
          {step.kind, use, step.variant, step.time == kNever ? kNever : now_ + step.time});
      wake(rank);
      break;
    }
    case Step::Kind::Wait:
      if (const auto& use = r.in_flight[static_cast<std::size_t>(step.name)];
          use && wait_for(rank, *use)) {
        return false;
      }
      break;
    case Step::Kind::WaitAll:
      for (const auto& use : r.in_flight) {
        if (use && wait_for(rank, *use)) return false;
      }
      break;
    case Step::Kind::Compute:
      ++r.next_step;
      schedule(step.time, Kind::Call, rank);
      last_progress_ = std::max(last_progress_, now_ + step.time);
      return false;
    case Step::Kind::Join: {
      const UseId use = r.uses.size();
      r.uses.push_back({-1});
      r.orders.push_back({step.kind, use, 0, kNever});
      wake(rank);
      r.blocked_on = use;
      ++r.next_step;
      return false;
    }
    case Step::Kind::ShutDown:
      r.orders.push_back({step.kind, 0, 0, kNever});
      wake(rank);
      break;
    case Step::Kind::Settled: r.settled = r.core->counters(); break;
  }
  ++r.next_step;
  if (step.kind != Step::Kind::Submit) return true;
  schedule(delay(scenario_.delays.call), Kind::Call, rank);
  return false;
}

/// True if the program is now blocked.
bool Simulation::wait_for(int rank, UseId use) {
  Rank& r = at(rank);
  if (r.uses[use].is_done) return false;
  r.blocked_on = use;
  r.orders.push_back({Step::Kind::Wait, use, 0, kNever});
  wake(rank);
  return true;
}

void Simulation::complete(int rank, UseId use) {
  Rank& r = at(rank);
  if (r.uses[use].is_done) throw Violation("a use ended twice");
  r.uses[use].is_done = true;
  if (const int name = r.uses[use].name; name >= 0) {
    r.in_flight[static_cast<std::size_t>(name)].reset();
  }
  last_progress_ = now_;
  if (r.blocked_on == use) schedule(delay(scenario_.delays.wake), Kind::Call, rank);
}

}  // namespace kolo::simulator
