#include "programs/rank_plan.hpp"

#include <algorithm>
#include <utility>

#include "support/random.hpp"

namespace kolo::programs {
namespace {

using simulator::Random;
using std::chrono::microseconds;

/// A rank's habits: some ranks are as steady as a training loop, others are not.
struct Habits {
  bool keeps_order = false;
  int late_one_in = 0;  // operations; 0: none
  int threaded_one_in = 0;
  bool waits_in_order = false;
};

Habits random_habits(Random& random) {
  Habits habits;
  habits.keeps_order = random.one_in(2);
  habits.late_one_in = random.pick(std::vector<int>{0, 0, 30, 12, 5});
  habits.threaded_one_in = random.pick(std::vector<int>{0, 0, 8, 3});
  habits.waits_in_order = random.one_in(2);
  return habits;
}

microseconds random_delay(const Habits& habits, Random& random) {
  if (habits.late_one_in == 0 || !random.one_in(habits.late_one_in)) return microseconds(0);
  return microseconds(random.one_in(8) ? random.between(500, 3000) : random.between(1, 300));
}

/// Unnamed operations of a kind are matched by call order, so they must keep it.
void restore_order_of_unnamed(const Program& program, std::vector<int>& operations) {
  const auto is_unnamed = [&](int id) {
    return program.operations[static_cast<std::size_t>(id)].name.empty();
  };
  std::vector<int> unnamed;
  std::copy_if(operations.begin(), operations.end(), std::back_inserter(unnamed), is_unnamed);
  std::sort(unnamed.begin(), unnamed.end());
  auto next = unnamed.begin();
  for (int& id : operations) {
    if (is_unnamed(id)) id = *next++;
  }
}

Wait random_wait(const Operation& operation, Random& random) {
  if (operation.is_settled || operation.error) {
    return random.pick(std::vector<Wait>{Wait::Block, Wait::Poll, Wait::Look});
  }
  return random.pick(std::vector<Wait>{Wait::Block, Wait::Block, Wait::Block, Wait::Block,
                                       Wait::Poll, Wait::Look, Wait::Drop});
}

int random_wait_round(const Operation& operation, int round, int last, Random& random) {
  if (operation.is_settled || !random.one_in(5)) return round;
  return std::min(last, round + random.between(1, 4));
}

std::vector<Step> random_steps(const Program& program, int round, int rank, const Habits& habits,
                               Random& random) {
  std::vector<int> operations;
  for (const int id : program.rounds[static_cast<std::size_t>(round)].operations) {
    const Operation& operation = program.operations[static_cast<std::size_t>(id)];
    if (!operation.is_refused && is_among(rank, operation.submitters)) operations.push_back(id);
  }
  if (!habits.keeps_order) {
    random.shuffle(operations);
    restore_order_of_unnamed(program, operations);
  }
  const bool is_threaded = habits.threaded_one_in > 0 && random.one_in(habits.threaded_one_in);
  const int last = static_cast<int>(program.rounds.size()) - 1;
  std::vector<Step> steps;
  for (const int id : operations) {
    const Operation& operation = program.operations[static_cast<std::size_t>(id)];
    Step step{id, random_delay(habits, random)};
    if (is_threaded && !operation.name.empty()) step.thread = random.between(0, 2);
    step.wait = random_wait(operation, random);
    step.wait_round = random_wait_round(operation, round, last, random);
    steps.push_back(step);
  }
  const bool has_blocking_call =
      program.rounds[static_cast<std::size_t>(round)].blocking_call.has_value();
  if (!steps.empty() && !has_blocking_call && random.one_in(3)) {
    steps.back().wait = Wait::BlockAtOnce;
    steps.back().wait_round = round;
  }
  for (const int id : program.rounds[static_cast<std::size_t>(round)].operations) {
    const Operation& operation = program.operations[static_cast<std::size_t>(id)];
    if (operation.is_refused && is_among(rank, operation.submitters)) {
      steps.push_back({id, microseconds(0)});
    }
  }
  return steps;
}

}  // namespace

std::vector<RoundPlan> plan_of(const Program& program, int rank) {
  Random random(program.seed * 64 + static_cast<std::uint64_t>(rank) + 1);
  const Habits habits = random_habits(random);
  std::vector<RoundPlan> plan(program.rounds.size());
  for (std::size_t round = 0; round < plan.size(); ++round) {
    plan[round].steps = random_steps(program, static_cast<int>(round), rank, habits, random);
    for (const Step& step : plan[round].steps) {
      const Operation& operation = program.operations[static_cast<std::size_t>(step.operation)];
      if (operation.is_refused) continue;
      plan[static_cast<std::size_t>(step.wait_round)].waits.push_back(step.operation);
    }
  }
  if (!habits.waits_in_order) {
    for (RoundPlan& round : plan) random.shuffle(round.waits);
  }
  return plan;
}

}  // namespace kolo::programs
