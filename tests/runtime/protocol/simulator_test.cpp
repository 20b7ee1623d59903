// The protocol in virtual time: random scenarios (the protocol_gate tool runs 100,000), and
// hand-written scenarios.

#include "support/protocol/simulator.hpp"

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/sanitizers.hpp"

namespace kolo::simulator::simulator_test {

using Kind = Step::Kind;

constexpr std::uint64_t kSeeds = test::kIsSanitized ? 500 : 2'000;

/// `names` small all-reduces with two variants each, on ranks with empty programs.
Scenario make_scenario(int ranks, int names) {
  Scenario scenario;
  scenario.seed = 1;
  scenario.ranks = ranks;
  scenario.programs.resize(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) scenario.world_ranks.push_back(rank);
  for (int name = 0; name < names; ++name) {
    runtime::Request request;
    request.name = std::string("n").append(std::to_string(name));
    request.tensors = {{DType::Float32, {4}}};
    scenario.names.push_back({request, request});
    scenario.names.back().back().tensors[0].shape = {5};
  }
  return scenario;
}

void add(Scenario& scenario, int rank, const Program& steps) {
  Program& program = scenario.programs[static_cast<std::size_t>(rank)];
  program.insert(program.end(), steps.begin(), steps.end());
}

/// Submits all names in order, then waits for all of them.
Program round(int names) {
  Program steps;
  for (int name = 0; name < names; ++name) steps.push_back({Kind::Submit, name});
  steps.push_back({Kind::WaitAll});
  return steps;
}

TEST(SimulatorTest, RandomScenarios_KeepTheProtocol) {
  Result total;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const Result result = simulate(random_scenario(seed));
    ASSERT_EQ(result.violation, "") << "replay: protocol_gate --seed " << seed << " --trace";
    total.outcomes += result.outcomes;
    total.negotiations += result.negotiations;
  }
  EXPECT_GT(total.outcomes, 10 * kSeeds);
  EXPECT_GT(total.negotiations, kSeeds);
}

TEST(SimulatorTest, SameSeed_GivesTheSameRun) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const Result first = simulate(random_scenario(seed));
    const Result again = simulate(random_scenario(seed));
    EXPECT_EQ(first.events, again.events);
    EXPECT_EQ(first.exchanges, again.exchanges);
    EXPECT_EQ(first.wake_up_requests, again.wake_up_requests);
  }
}

TEST(SimulatorTest, SteadyProgram_SettlesAtOneExchangePerRoundWithoutWakeUps) {
  Scenario scenario = make_scenario(4, 3);
  for (int rank = 0; rank < 4; ++rank) {
    for (int i = 0; i < 4; ++i) add(scenario, rank, round(3));
    add(scenario, rank, {{Kind::Settled}});
    for (int i = 0; i < 50; ++i) add(scenario, rank, round(3));
  }
  const Result result = simulate(scenario);
  EXPECT_EQ(result.violation, "");
  EXPECT_EQ(result.finished, 4);
  EXPECT_EQ(result.negotiations, 1u);
  EXPECT_EQ(result.outcomes, 3u * 54u);
  EXPECT_LE(result.exchanges, 3u * 56u);
}

TEST(SimulatorTest, AlternatingLayers_Settle) {
  Scenario scenario = make_scenario(3, 6);
  scenario.patience = Time{10'000'000'000};
  const std::vector<std::vector<int>> phases{{0, 1, 2}, {5, 4, 3}};
  for (int rank = 0; rank < 3; ++rank) {
    for (int i = 0; i < 120; ++i) {
      if (i == 80) add(scenario, rank, {{Kind::Settled}});
      for (const int name : phases[static_cast<std::size_t>(i / 10 % 2)]) {
        add(scenario, rank, {{Kind::Submit, name}});
      }
      add(scenario, rank, {{Kind::WaitAll}});
    }
  }
  const Result result = simulate(scenario);
  EXPECT_EQ(result.violation, "");
  EXPECT_EQ(result.finished, 3);
}

TEST(SimulatorTest, SkippedTensor_HoldsUpOnlyRanksThatWaitForIt) {
  Scenario scenario = make_scenario(3, 2);
  for (int rank = 0; rank < 3; ++rank) {
    add(scenario, rank, round(2));
    if (rank != 1) add(scenario, rank, {{Kind::Submit, 1}});
    for (int i = 0; i < 10; ++i) add(scenario, rank, {{Kind::Submit, 0}, {Kind::Wait, 0}});
  }
  add(scenario, 2, {{Kind::Wait, 1}});
  const Result result = simulate(scenario);
  EXPECT_EQ(result.violation, "");
  EXPECT_EQ(result.finished, 2) << "rank 2 waits for what rank 1 skipped";
  EXPECT_EQ(result.outcomes, 2u + 10u);
}

/// In each run the victim takes one step more, so that it dies at every possible moment.
void die_at_every_moment(Fault::Kind kind, int victim, bool by_messages) {
  for (int after = 1; after < 80; ++after) {
    Scenario scenario = make_scenario(4, 2);
    scenario.by_messages = by_messages;
    scenario.tree_width = 2;
    for (int rank = 0; rank < 4; ++rank) {
      for (int i = 0; i < 3; ++i) {
        Program steps = round(2);
        for (Step& step : steps) {
          if (step.kind == Kind::Submit) step.time = Time{50'000'000};
        }
        add(scenario, rank, steps);
      }
    }
    scenario.faults = {{victim, kind, after}};
    const Result result = simulate(scenario);
    ASSERT_EQ(result.violation, "") << "victim " << victim << " after " << after;
    ASSERT_GE(result.finished, 3) << "victim " << victim << " after " << after;
  }
}

TEST(SimulatorTest, DeathAtAnyMoment_EndsEveryWait) {
  for (const int victim : {0, 1, 3}) {
    for (const bool by_messages : {false, true}) {
      die_at_every_moment(Fault::Kind::Die, victim, by_messages);
      die_at_every_moment(Fault::Kind::DieWithMessage, victim, by_messages);
    }
  }
}

TEST(SimulatorTest, FrozenRank_IsLostAfterTheDeadline) {
  for (const int victim : {0, 3}) {
    for (const bool by_messages : {false, true}) {
      die_at_every_moment(Fault::Kind::Freeze, victim, by_messages);
    }
  }
}

TEST(SimulatorTest, ComputingRanks_CauseNoEvents) {
  Scenario scenario = make_scenario(2, 1);
  for (int rank = 0; rank < 2; ++rank) {
    add(scenario, rank, round(1));
    add(scenario, rank, {{Kind::Compute, 0, 0, Time{1'000'000'000}}});
  }
  const Result busy = simulate(scenario);
  for (Program& program : scenario.programs) program.back().time = Time{1'000'000'000'000};
  const Result idle = simulate(scenario);
  EXPECT_EQ(busy.violation, "");
  EXPECT_EQ(idle.violation, "");
  EXPECT_EQ(idle.events, busy.events);
}

}  // namespace kolo::simulator::simulator_test
