#include "runtime/protocol/deferred_errors.hpp"

#include <string>

#include <gtest/gtest.h>

namespace kolo::runtime::deferred_errors_test {

Failure timeout_of(const std::string& text) { return {ErrorKind::Timeout, text}; }

TEST(DeferredErrorsTest, ANamesErrorsComeInTheirOrder) {
  DeferredErrors tombstones;
  for (const char* text : {"first", "first", "second", "first"}) {
    tombstones.add("a", timeout_of(text));
  }
  tombstones.add("b", timeout_of("other"));
  EXPECT_EQ(tombstones.size(), 4u) << "equal ones in a row are kept as one";
  for (const char* text : {"first", "first", "second", "first"}) {
    EXPECT_EQ(tombstones.take("a"), timeout_of(text));
  }
  EXPECT_EQ(tombstones.take("a"), std::nullopt);
  EXPECT_EQ(tombstones.take("b"), timeout_of("other"));
  EXPECT_EQ(tombstones.size(), 0u);
}

TEST(DeferredErrorsTest, ARepeatedErrorTakesNoMoreMemory) {
  DeferredErrors tombstones;
  for (int use = 0; use < 1000; ++use) tombstones.add("a", timeout_of("missing: rank 1"));
  EXPECT_EQ(tombstones.size(), 1u);
  for (int use = 0; use < 1000; ++use) EXPECT_NE(tombstones.take("a"), std::nullopt) << use;
  EXPECT_EQ(tombstones.take("a"), std::nullopt);
}

TEST(DeferredErrorsTest, TheOldestGiveWayToNewOnes) {
  DeferredErrors tombstones(3);
  tombstones.add("kept", timeout_of("0"));
  for (int i = 0; i < 5; ++i) tombstones.add("name " + std::to_string(i), timeout_of("1"));
  tombstones.add("name 4", timeout_of("2"));
  EXPECT_EQ(tombstones.size(), 3u);
  EXPECT_EQ(tombstones.take("kept"), std::nullopt);
  EXPECT_EQ(tombstones.take("name 2"), std::nullopt);
  EXPECT_EQ(tombstones.take("name 3"), timeout_of("1"));
  EXPECT_EQ(tombstones.take("name 4"), timeout_of("1"));
  EXPECT_EQ(tombstones.take("name 4"), timeout_of("2"));
  tombstones.add("name 3", timeout_of("3"));
  tombstones.clear();
  EXPECT_EQ(tombstones.take("name 3"), std::nullopt);
}

}  // namespace kolo::runtime::deferred_errors_test
