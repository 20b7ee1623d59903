// The life of a Runtime, from its configuration to its end.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "runtime/runtimes.hpp"
#include "runtime/values.hpp"

namespace kolo::test {
namespace {

TEST(RuntimeTest, KnowsItsPlace) {
  const Setting setting{.size = 7, .network = {.nodes = 3}};  // 3 + 2 + 2
  run_runtimes(setting, [](Runtime& runtime) {
    const int rank = runtime.rank();
    EXPECT_EQ(runtime.size(), 7);
    EXPECT_EQ(runtime.local_rank(), rank < 3 ? rank : (rank - 3) % 2);
    EXPECT_EQ(runtime.local_size(), rank < 3 ? 3 : 2);
    EXPECT_EQ(runtime.cross_rank(), rank == 2 ? 0 : rank < 3 ? 0 : 1 + (rank - 3) / 2);
    EXPECT_EQ(runtime.cross_size(), rank == 2 ? 1 : 3);
    EXPECT_FALSE(runtime.is_homogeneous());
    EXPECT_EQ(rank, kolo::rank());
    EXPECT_EQ(runtime.local_rank(), kolo::local_rank());
    EXPECT_EQ(runtime.cross_size(), kolo::cross_size());
    EXPECT_EQ(runtime.world().rank(), rank);
    EXPECT_EQ(runtime.world().ranks(), (std::vector<int>{0, 1, 2, 3, 4, 5, 6}));
    EXPECT_EQ(runtime.world().name(), "world");
  });
}

TEST(RuntimeTest, MayBeMadeAgain) {
  for (const int nodes : {1, 3}) {
    run_ranks(3,
              [](FakeWorld& world) {
                for (int round = 0; round < 3; ++round) {
                  Runtime runtime(options_in(world, test_config()));
                  Runtime::set_thread_current(&runtime);
                  expect_sum_works(runtime, "x");
                  expect_sum_works(runtime, "y", 1000);
                }
              },
              {.nodes = nodes, .rendezvous = true});
  }
}

TEST(RuntimeTest, ConfigurationsThatDifferAreRefusedOnEveryRank) {
  run_ranks(3, [](FakeWorld& world) {
    Config config = test_config();
    config.log_level = world.topology().rank == 0 ? "error" : "debug";  // these may differ
    config.fusion_bytes = world.topology().rank == 2 ? 1 << 20 : 1 << 19;
    const std::string text =
        text_thrown_by<InvalidArgument>([&] { Runtime runtime(options_in(world, config)); });
    expect_contains(text, "rank 0 has KOLO_FUSION_BYTES=512KB");
    expect_contains(text, "rank 2 has KOLO_FUSION_BYTES=1MB");
  });
}

TEST(RuntimeTest, AnUnknownAlgorithmIsRefusedAtTheStart) {
  run_ranks(2, [&](FakeWorld& world) {
    Config config = test_config();
    config.allreduce = "rign";
    const std::string text =
        text_thrown_by<InvalidArgument>([&] { Runtime runtime(options_in(world, config)); });
    expect_contains(text, "rign");
    expect_contains(text, "ring");  // one of the choices
  });
}

TEST(RuntimeTest, WithoutMpirunItIsAWorldOfOne) {
  EXPECT_FALSE(is_initialized());
  EXPECT_THROW(rank(), InvalidArgument);
  init();
  init();  // does nothing
  EXPECT_TRUE(is_initialized());
  EXPECT_EQ(rank(), 0);
  EXPECT_EQ(size(), 1);
  EXPECT_EQ(local_size(), 1);
  EXPECT_EQ(cross_size(), 1);
  EXPECT_TRUE(is_homogeneous());
  expect_sum_works(Runtime::current(), "x", 1000);
  shutdown();
  EXPECT_FALSE(is_initialized());
  shutdown();  // does nothing
  {
    Runtime runtime({.config = test_config()});
    EXPECT_EQ(&Runtime::current(), &runtime);
    expect_sum_works(runtime, "x");
  }
  EXPECT_FALSE(is_initialized());
}

}  // namespace
}  // namespace kolo::test
