// Algorithms chosen by name, and the process's Runtime, over the MPI that the test program started.
#include <gtest/gtest.h>

#include "kolo/algorithm.hpp"
#include "kolo/runtime.hpp"
#include "mpi/runtime_variants.hpp"
#include "ops/registry.hpp"
#include "runtime/values.hpp"
#include "support/mpi/mpi_ranks.hpp"

namespace kolo::test::runtime_over_mpi_test {

TEST(RuntimeOverMpiTest, EveryAllReduceAlgorithmGivesTheSameSums) {
  const ops::Registry registry;
  for (const Algorithm& algorithm : registry.algorithms()) {
    if (algorithm.collective != Collective::AllReduce) continue;
    SCOPED_TRACE(algorithm.name);
    Config config = config_of_ranks();
    config.allreduce = algorithm.name;
    Runtime runtime({.config = config});
    expect_sum_works(runtime, "short", 3);
    expect_sum_works(runtime, "long", 50001);
  }
}

TEST(RuntimeOverMpiTest, TheProcessMayOwnIt) {
  for (int round = 0; round < 2; ++round) {
    init();
    EXPECT_TRUE(is_initialized());
    EXPECT_EQ(size(), MpiRanks::instance().size());
    EXPECT_EQ(rank(), MpiRanks::instance().rank());
    expect_sum_works(Runtime::current(), "x");
    shutdown();
    EXPECT_FALSE(is_initialized());
  }
}

}  // namespace kolo::test::runtime_over_mpi_test
