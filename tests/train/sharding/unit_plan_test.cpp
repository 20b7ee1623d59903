#include <cstddef>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "train/sharding/gathered_units.hpp"

namespace kolo::train {
namespace {

using Units = std::vector<std::size_t>;

/// In the model's order.
std::vector<UnitMember> members_of(const std::vector<std::pair<std::string, std::size_t>>& all) {
  std::vector<UnitMember> members;
  for (const auto& [name, bytes] : all) members.push_back({name, bytes, members.size()});
  return members;
}

TEST(UnitPlanTest, Units_AreFilledWithWholeModules) {
  const UnitPlan plan = plan_units(
      members_of(
          {{"a.weight", 60}, {"a.bias", 10}, {"b.weight", 30}, {"c.weight", 5}, {"c.bias", 1}}),
      100);
  EXPECT_EQ(plan.unit_of, (Units{0, 0, 0, 1, 1}));
  EXPECT_EQ(plan.names, (std::vector<std::string>{"a", "c"}));
}

TEST(UnitPlanTest, LargeModules_AreNotSplit) {
  const UnitPlan plan = plan_units(
      members_of({{"a.weight", 10}, {"b.weight", 500}, {"b.bias", 500}, {"c.weight", 10}}), 100);
  EXPECT_EQ(plan.unit_of, (Units{0, 1, 1, 2}));
}

TEST(UnitPlanTest, OrderIsThatOfTheModel_NotOfTheOptimizersGroups) {
  const std::vector<UnitMember> members{
      {"a.weight", 50, 0}, {"b.weight", 50, 2}, {"a.bias", 1, 1}, {"b.bias", 1, 3}};
  const UnitPlan plan = plan_units(members, 60);
  EXPECT_EQ(plan.unit_of, (Units{0, 1, 0, 1}));
}

TEST(UnitPlanTest, NestedModules_AreDifferentOnes) {
  const UnitPlan plan =
      plan_units(members_of({{"block.weight", 50}, {"block.inner.weight", 50}, {"scale", 50}}), 60);
  EXPECT_EQ(plan.unit_of, (Units{0, 1, 2}));
}

TEST(UnitPlanTest, Groups_MakeUnits) {
  std::vector<UnitMember> members =
      members_of({{"a.weight", 1}, {"a.bias", 1}, {"b.weight", 500}, {"c.weight", 1}});
  members[1].group = members[2].group = 0;
  const UnitPlan plan = plan_units(members, 100);
  EXPECT_EQ(plan.unit_of, (Units{0, 1, 1, 2}));
}

}  // namespace
}  // namespace kolo::train
