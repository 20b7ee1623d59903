#include "restart/cause.hpp"

#include <string>
#include <string_view>

#include <gtest/gtest.h>

namespace kolo::test::restart_cause_test {

using restart::Cause;
using restart::CauseFinder;

std::optional<Cause> cause_of(std::string_view text) {
  CauseFinder whole;
  whole.add(text);
  CauseFinder in_bytes;  // as it may arrive through a pipe
  for (const char byte : text) in_bytes.add({&byte, 1});
  EXPECT_EQ(whole.cause().has_value(), in_bytes.cause().has_value());
  EXPECT_EQ(whole.cause().value_or(Cause()).text, in_bytes.cause().value_or(Cause()).text);
  return whole.cause();
}

constexpr std::string_view kKilled =
    "--------------------------------------------------------------------------\n"
    "mpirun noticed that process rank 12 with PID 4711 on node b exited on signal 9 (Killed).\n"
    "--------------------------------------------------------------------------\n";

TEST(RestartCause, KilledRankAndItsNode) {
  const auto cause = cause_of(kKilled);
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->text, "rank 12 on node b ended by signal 9 (Killed)");
  EXPECT_EQ(cause->node, "b");
  EXPECT_TRUE(cause->may_be_node_failure);
}

TEST(RestartCause, AbortedRankIsNotTheFaultOfItsNode) {
  for (const char* const signal : {"6 (Aborted)", "11 (Segmentation fault)", "15 (Terminated)"}) {
    const auto cause = cause_of(
        "mpirun noticed that process rank 0 with PID 0 on node a.b exited on "
        "signal " +
        std::string(signal) + ".\n");
    ASSERT_TRUE(cause);
    EXPECT_EQ(cause->text, "rank 0 on node a.b ended by signal " + std::string(signal));
    EXPECT_FALSE(cause->may_be_node_failure);
  }
}

TEST(RestartCause, MessageOfVersion5HasALineBreak) {
  const auto cause = cause_of(
      "prterun noticed that process rank 3 with PID 17 on node b exited on\n"
      "signal 7 (Bus error).\n");
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->text, "rank 3 on node b ended by signal 7 (Bus error)");
  EXPECT_TRUE(cause->may_be_node_failure);
}

TEST(RestartCause, ExitStatusOfARank) {
  for (const char* const name : {"[[12060,1],2]", "[prterun-vm-4711@1,2]"}) {
    const auto cause = cause_of(
        "the job to be terminated. The first process to do so was:\n\n"
        "  Process name: " +
        std::string(name) + "\n  Exit code:    3\n");
    ASSERT_TRUE(cause) << name;
    EXPECT_EQ(cause->text, "rank 2 ended with exit status 3");
    EXPECT_EQ(cause->node, "");
    EXPECT_FALSE(cause->may_be_node_failure);
  }
}

TEST(RestartCause, ProgramThatANodeCannotStart) {
  const auto cause = cause_of(
      "or execute an executable:\n\nExecutable: /opt/my train\nNode: b\n\n"
      "while attempting to start process rank 0.\n");
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->text, "the program could not be started on node b");
  EXPECT_EQ(cause->node, "b");
  EXPECT_TRUE(cause->may_be_node_failure);
}

TEST(RestartCause, LostNodeIsTheRemoteOne) {
  const auto cause = cause_of(
      "ORTE has lost communication with a remote daemon.\n\n"
      "  HNP daemon   : [[14620,0],0] on node a\n"
      "  Remote daemon: [[14620,0],1] on node b\n\n");
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->text, "the connection to node b was lost");
  EXPECT_EQ(cause->node, "b");
  EXPECT_TRUE(cause->may_be_node_failure);
}

TEST(RestartCause, FirstOneCounts) {
  const auto cause =
      cause_of("  Process name: [[1,1],0]\n  Exit code:    1\n" + std::string(kKilled));
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->text, "rank 0 ended with exit status 1");
}

TEST(RestartCause, JobIsGivenUpBeforeItsCauseIsKnown) {
  CauseFinder finder;
  finder.add("Primary job  terminated normally, but 1 process returned\n");
  EXPECT_FALSE(finder.is_aborted());
  finder.add("a non-zero exit code. Per user-direction, the job has been aborted.\n");
  EXPECT_TRUE(finder.is_aborted());
  EXPECT_FALSE(finder.cause());
  CauseFinder other;
  other.add(kKilled);
  EXPECT_TRUE(other.is_aborted());
}

TEST(RestartCause, OtherTextIsNone) {
  EXPECT_FALSE(cause_of(""));
  EXPECT_FALSE(cause_of("epoch 1: loss 0.5\nNode: b\nProcess name: train\nExit code: 1\n"));
  EXPECT_FALSE(cause_of("Executable: x\n\nNode: b"));  // the line is incomplete
  EXPECT_FALSE(cause_of(std::string(100'000, 'x') + "noticed that process rank\n"));
}

}  // namespace kolo::test::restart_cause_test
