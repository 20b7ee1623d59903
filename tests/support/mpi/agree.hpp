#pragma once

#include <string>

#include <gtest/gtest.h>

/// Decisions that all ranks of an MPI test make together. Between two collectives a test uses these
/// macros or EXPECT_…: a rank that leaves the test alone would leave the others waiting. All
/// ranks must reach each of them, in the same order.
namespace kolo::test {

/// Success on all ranks if `condition` holds on all of them; otherwise names the ranks where it
/// fails.
testing::AssertionResult on_all_ranks(bool condition, const char* text, const char* file, int line);

/// The reason of the lowest rank that has one, with that rank, on all ranks; empty if none has.
std::string first_reason(const std::string& reason, const char* file, int line);

}  // namespace kolo::test

#define EXPECT_ON_ALL_RANKS(condition) \
  EXPECT_TRUE(                         \
      ::kolo::test::on_all_ranks(static_cast<bool>(condition), #condition, __FILE__, __LINE__))

#define ASSERT_ON_ALL_RANKS(condition) \
  ASSERT_TRUE(                         \
      ::kolo::test::on_all_ranks(static_cast<bool>(condition), #condition, __FILE__, __LINE__))

/// Skips the test on all ranks if `condition` holds on any of them.
#define SKIP_IF_ANY_RANK(condition, reason)                                             \
  if (const std::string kolo_reason = ::kolo::test::first_reason(                       \
          static_cast<bool>(condition) ? (reason) : std::string(), __FILE__, __LINE__); \
      !kolo_reason.empty())                                                             \
  GTEST_SKIP() << kolo_reason
