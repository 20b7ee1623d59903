#include <cstddef>
#include <vector>

#include <gtest/gtest.h>

#include "train/sharding/gathered_units.hpp"

namespace kolo::train {
namespace {

void use(UseOrder& order, const std::vector<std::size_t>& units) {
  for (const std::size_t unit : units) order.use(unit);
}

std::vector<std::size_t> ahead(const UseOrder& order) {
  return {order.ahead().begin(), order.ahead().end()};
}

TEST(UseOrderTest, FirstStep_ExpectsNothing) {
  UseOrder order;
  use(order, {0, 1});
  EXPECT_TRUE(order.ahead().empty());
  EXPECT_EQ(order.uses_until(0), UseOrder::kNever);
}

TEST(UseOrderTest, NextStep_IsExpectedToBeLikeTheLast) {
  UseOrder order;
  use(order, {0, 1, 2, 1, 0});
  order.end_step();
  EXPECT_EQ(ahead(order), (std::vector<std::size_t>{0, 1, 2, 1, 0}));
  use(order, {0, 1});
  EXPECT_EQ(ahead(order), (std::vector<std::size_t>{2, 1, 0}));
  EXPECT_EQ(order.uses_until(2), 0U);
  EXPECT_EQ(order.uses_until(0), 2U);
  EXPECT_EQ(order.uses_until(7), UseOrder::kNever);
}

TEST(UseOrderTest, StepThatDiffers_ExpectsNothingAndIsLearnt) {
  UseOrder order;
  use(order, {0, 1, 2});
  order.end_step();
  use(order, {0, 2, 2, 1});
  EXPECT_TRUE(order.ahead().empty());
  order.end_step();
  EXPECT_EQ(ahead(order), (std::vector<std::size_t>{0, 2, 2, 1}));
}

TEST(UseOrderTest, StepThatGoesOn_ExpectsNothing) {
  UseOrder order;
  use(order, {3});
  order.end_step();
  use(order, {3, 4});
  EXPECT_TRUE(order.ahead().empty());
  order.end_step();
  use(order, {3});
  EXPECT_EQ(ahead(order), (std::vector<std::size_t>{4}));
}

TEST(UseOrderTest, VeryLongSteps_AreNotLearnt) {
  UseOrder order;
  for (std::size_t i = 0; i < (std::size_t{1} << 17); ++i) order.use(i % 5);
  order.end_step();
  EXPECT_TRUE(order.ahead().empty());
}

}  // namespace
}  // namespace kolo::train
