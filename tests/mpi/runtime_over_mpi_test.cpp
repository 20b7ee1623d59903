// The process's Runtime, and several at once, over the MPI that the test program started.
#include <thread>

#include <gtest/gtest.h>
#include <mpi.h>

#include "kolo/mpi.hpp"
#include "kolo/runtime.hpp"
#include "mpi/runtime_variants.hpp"
#include "runtime/values.hpp"
#include "support/mpi/mpi_ranks.hpp"

namespace kolo::test::runtime_over_mpi_test {

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

TEST(RuntimeOverMpiTest, RuntimesStartAtOnceOnTwoCommunicators) {
  const auto all = MpiRanks::instance().group();
  const MPI_Comm original = all ? MPI_Comm_f2c(*all) : MPI_COMM_WORLD;
  MPI_Comm copies[2];
  for (MPI_Comm& copy : copies) MPI_Comm_dup(original, &copy);
  for (int round = 0; round < 5; ++round) {
    const auto start = [&](int which) {
      Config config = config_of_ranks();
      Runtime runtime({.config = config, .communicator = MPI_Comm_c2f(copies[which])});
      Runtime::set_thread_current(&runtime);
      expect_sum_works(runtime, "x");
      Runtime::set_thread_current(nullptr);
    };
    const int first = MpiRanks::instance().rank() % 2;  // ranks begin in different orders
    const std::jthread one([&] { start(first); });
    const std::jthread other([&] { start(1 - first); });
  }
  for (MPI_Comm& copy : copies) {
    const MpiLock calls;
    MPI_Comm_free(&copy);
  }
}

}  // namespace kolo::test::runtime_over_mpi_test
