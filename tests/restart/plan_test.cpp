#include "restart/plan.hpp"

#include <chrono>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace kolo::test::restart_plan_test {

using restart::Attempt;
using restart::Host;
using restart::Plan;
using std::chrono::milliseconds;

const std::vector<Host> kThreeHosts{{"a", 2}, {"b", 2}, {"c", 1}};

std::string list(const Attempt& attempt) {
  return std::to_string(attempt.ranks) + " on " + restart::to_list(attempt.hosts);
}

TEST(RestartPlan, WithoutHosts_RanksStay) {
  Plan plan({.ranks = 4, .min_ranks = 2}, {});
  EXPECT_EQ(list(plan.first()), "4 on ");
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(plan.note_failure("b", "b"), "");
    EXPECT_EQ(list(plan.next({})), "4 on ");
    EXPECT_TRUE(plan.is_possible(plan.next({})));
  }
}

TEST(RestartPlan, HostsThatDoNotAnswer_AreLeftOutUntilTheyDo) {
  const Plan plan({.ranks = 5, .min_ranks = 2}, kThreeHosts);
  EXPECT_EQ(list(plan.first()), "5 on a:2,b:2,c:1");
  EXPECT_EQ(list(plan.next({true, false, true})), "3 on a:2,c:1");
  EXPECT_EQ(list(plan.next({false, true, false})), "2 on b:2");
  EXPECT_EQ(list(plan.next({true, true, true})), "5 on a:2,b:2,c:1");
}

TEST(RestartPlan, SpareSlots_KeepTheNumberOfRanks) {
  const Plan plan({.ranks = 3, .min_ranks = 3}, kThreeHosts);
  EXPECT_EQ(list(plan.first()), "3 on a:2,b:2,c:1");
  EXPECT_EQ(list(plan.next({true, false, true})), "3 on a:2,c:1");
  EXPECT_TRUE(plan.is_possible(plan.next({true, false, true})));
}

TEST(RestartPlan, FewerRanksThanAllowed_AreNotPossible) {
  const Plan plan({.ranks = 5, .min_ranks = 2}, kThreeHosts);
  EXPECT_TRUE(plan.is_possible(plan.next({true, false, false})));
  EXPECT_FALSE(plan.is_possible(plan.next({false, false, true})));
  EXPECT_FALSE(plan.is_possible(plan.next({false, false, false})));
}

TEST(RestartPlan, HostThatFailsInARow_IsGivenUp) {
  Plan plan({.ranks = 5, .min_ranks = 2, .host_failures = 2}, kThreeHosts);
  EXPECT_EQ(plan.note_failure("b", "a"), "");
  EXPECT_EQ(plan.note_failure("b.cluster", "a"), "b");
  EXPECT_EQ(restart::to_list(plan.hosts()), "a:2,c:1");
  EXPECT_EQ(list(plan.next({true, true})), "3 on a:2,c:1");
  EXPECT_EQ(plan.note_failure("b", "a"), "");  // already given up
  EXPECT_EQ(plan.note_failure("c", "a"), "");
  EXPECT_EQ(plan.note_failure("c", "a"), "c");
}

TEST(RestartPlan, FailuresThatAreNotInARow_GiveNoHostUp) {
  Plan plan({.ranks = 5, .min_ranks = 1, .host_failures = 2}, kThreeHosts);
  for (const char* const node : {"a", "b", "a", "", "a", "unknown", "a", "c"}) {
    EXPECT_EQ(plan.note_failure(node, "here"), "") << node;
  }
  EXPECT_EQ(plan.hosts(), kThreeHosts);
  Plan nobody({.ranks = 5, .min_ranks = 1, .host_failures = 2}, kThreeHosts);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(nobody.note_failure("", "here"), "");
}

TEST(RestartPlan, HostWithoutWhichTooFewRanksAreLeft_IsKept) {
  Plan plan({.ranks = 5, .min_ranks = 4, .host_failures = 1}, kThreeHosts);
  EXPECT_EQ(plan.note_failure("a", "here"), "");
  EXPECT_EQ(plan.note_failure("c", "here"), "c");
  EXPECT_EQ(plan.note_failure("b", "here"), "");
  EXPECT_EQ(restart::to_list(plan.hosts()), "a:2,b:2");
  Plan alone({.ranks = 2, .min_ranks = 1, .host_failures = 1}, {{"localhost", 2}});
  EXPECT_EQ(alone.note_failure("here", "here"), "");
  EXPECT_EQ(list(alone.next({true})), "2 on localhost:2");
}

TEST(RestartPlan, Pause_DoublesUpToAMinute) {
  const milliseconds second(1000);
  EXPECT_EQ(restart::pause_before(1, second), second);
  EXPECT_EQ(restart::pause_before(2, second), 2 * second);
  EXPECT_EQ(restart::pause_before(6, second), 32 * second);
  EXPECT_EQ(restart::pause_before(7, second), 60 * second);
  EXPECT_EQ(restart::pause_before(1'000'000, second), 60 * second);
  EXPECT_EQ(restart::pause_before(3, 90 * second), 90 * second);
  EXPECT_EQ(restart::pause_before(1'000'000, milliseconds(0)), milliseconds(0));
}

}  // namespace kolo::test::restart_plan_test
