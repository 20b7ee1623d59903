// How the main of MPI tests reports failures: these tests fail on purpose, each in its own run,
// whose output and exit code CTest checks.
#include <thread>

#include <gtest/gtest.h>

#include "support/mpi/agree.hpp"
#include "support/mpi/mpi_ranks.hpp"

namespace kolo::test::mpi_main_test {

bool is_last() { return MpiRanks::instance().rank() == MpiRanks::instance().size() - 1; }

TEST(MpiMainTest, FailsOnOneRank) {
  if (is_last()) FAIL() << "this rank alone\nin two lines";
}

TEST(MpiMainTest, FailsTogether) { ASSERT_ON_ALL_RANKS(!is_last()); }

TEST(MpiMainTest, SkipsTogether) {
  SKIP_IF_ANY_RANK(is_last(), "the last rank cannot");
  FAIL() << "not skipped";
}

TEST(MpiMainTest, Hangs) {
  if (is_last()) return;
  for (;;) std::this_thread::yield();
}

}  // namespace kolo::test::mpi_main_test
