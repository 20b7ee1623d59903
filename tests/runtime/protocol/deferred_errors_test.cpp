#include <string>

#include <gtest/gtest.h>

#include "runtime/protocol/coordinator.hpp"

namespace kolo::runtime::deferred_errors_test {

Failure timeout_of(const std::string& text) { return {ErrorKind::Timeout, text}; }

TEST(DeferredErrorsTest, ErrorsOfAName_ComeInOrder) {
  DeferredErrors errors;
  for (const char* text : {"first", "first", "second", "first"}) {
    errors.add("a", timeout_of(text));
  }
  errors.add("b", timeout_of("other"));
  EXPECT_EQ(errors.size(), 4u) << "equal ones in a row are kept as one";
  for (const char* text : {"first", "first", "second", "first"}) {
    EXPECT_EQ(errors.take("a"), timeout_of(text));
  }
  EXPECT_EQ(errors.take("a"), std::nullopt);
  EXPECT_EQ(errors.take("b"), timeout_of("other"));
  EXPECT_EQ(errors.size(), 0u);
}

TEST(DeferredErrorsTest, RepeatedError_TakesNoMoreMemory) {
  DeferredErrors errors;
  for (int use = 0; use < 1000; ++use) errors.add("a", timeout_of("missing: rank 1"));
  EXPECT_EQ(errors.size(), 1u);
  for (int use = 0; use < 1000; ++use) EXPECT_NE(errors.take("a"), std::nullopt) << use;
  EXPECT_EQ(errors.take("a"), std::nullopt);
}

TEST(DeferredErrorsTest, BeyondTheCapacity_TheOldestIsDropped) {
  DeferredErrors errors(3);
  errors.add("kept", timeout_of("0"));
  for (int i = 0; i < 5; ++i) errors.add("name " + std::to_string(i), timeout_of("1"));
  errors.add("name 4", timeout_of("2"));
  EXPECT_EQ(errors.size(), 3u);
  EXPECT_EQ(errors.take("kept"), std::nullopt);
  EXPECT_EQ(errors.take("name 2"), std::nullopt);
  EXPECT_EQ(errors.take("name 3"), timeout_of("1"));
  EXPECT_EQ(errors.take("name 4"), timeout_of("1"));
  EXPECT_EQ(errors.take("name 4"), timeout_of("2"));
  errors.add("name 3", timeout_of("3"));
  errors.clear();
  EXPECT_EQ(errors.take("name 3"), std::nullopt);
}

}  // namespace kolo::runtime::deferred_errors_test
