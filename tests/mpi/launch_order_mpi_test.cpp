// The order of launches on GPUs, by messages of MPI.
#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "comm/mpi_world.hpp"
#include "compression/registry.hpp"
#include "contract/messages.hpp"
#include "kolo/config.hpp"
#include "ops/registry.hpp"
#include "runtime/data/data_path.hpp"
#include "runtime/device/launch_order.hpp"
#include "support/mpi/mpi_ranks.hpp"

namespace kolo::runtime::launch_order_mpi_test {

int rank() { return test::MpiRanks::instance().rank(); }
int size() { return test::MpiRanks::instance().size(); }

std::vector<int> other_ranks() {
  std::vector<int> ranks(static_cast<std::size_t>(size()) - 1);
  std::iota(ranks.begin(), ranks.end(), 1);
  return ranks;
}

/// The order over all ranks, and a process set of this rank alone.
class LaunchOrderMpiTest : public testing::Test {
 protected:
  LaunchOrderMpiTest() {
    const std::array own{rank()};
    alone_.world_ranks = {own.begin(), own.end()};
    alone_.communicator = world_.make_communicator(own, 1);
    alone_.node_of_rank = {0};
    order_.expect_questions();
  }

  void run(Task task) {
    while (task.poll() != Progress::Done) order_.serve();
  }
  /// Asks for the turn of a batch, and ends it.
  LaunchOrder::Ticket launch() {
    LaunchOrder::Ticket ticket;
    run(order_.enter(alone_, ticket));
    if (ticket.number > 0) order_.leave(ticket);
    return ticket;
  }
  /// Ends once all ranks are here. Rank 0 answers questions meanwhile.
  void await_all() {
    constexpr int kTag = 0;
    if (rank() > 0) return run(received(all_->send({}, 0, kTag)));
    for (const int other : other_ranks()) run(received(all_->receive({}, other, kTag)));
  }

  const Config config_;
  const ops::Registry algorithms_;
  const compression::Registry compressors_;
  comm::MpiWorld world_{config_};
  std::unique_ptr<Communicator> all_ = test::everybody(world_, 2);
  DataPath alone_{{algorithms_, compressors_, {}}, config_};
  LaunchOrder order_{test::everybody(world_)};

 private:
  static Task received(Transfer transfer) { co_await transfer; }
};

TEST_F(LaunchOrderMpiTest, BatchesOfAllRanks_AreNumberedOneByOne) {
  constexpr int kBatches = 5;
  std::vector<int> all_numbers;
  std::vector<int> own_numbers;
  for (int i = 0; i < kBatches; ++i) own_numbers.push_back(static_cast<int>(launch().number));
  await_all();
  run(order_.close());
  EXPECT_TRUE(std::is_sorted(own_numbers.begin(), own_numbers.end()));
  for (const int number : own_numbers) {
    for (const int of_rank : test::MpiRanks::instance().gather(number, "numbers")) {
      all_numbers.push_back(of_rank);
    }
  }
  std::sort(all_numbers.begin(), all_numbers.end());
  std::vector<int> expected(static_cast<std::size_t>(kBatches * size()));
  std::iota(expected.begin(), expected.end(), 1);
  EXPECT_EQ(all_numbers, expected);
}

TEST_F(LaunchOrderMpiTest, RanksThatGoOn_AreRefusedOnceRankZeroCloses) {
  if (rank() > 0) {
    LaunchOrder::Ticket last = launch();
    while (last.number > 0) last = launch();
    EXPECT_FALSE(last.is_world_lost);
  }
  run(order_.close());
  EXPECT_EQ(order_.awaited(), std::vector<int>());
}

TEST_F(LaunchOrderMpiTest, ProcessesThatHaveEnded_AreNotAwaited) {
  if (rank() > 0) return;
  EXPECT_EQ(order_.awaited(), other_ranks());
  EXPECT_EQ(order_.stop_waiting_for(other_ranks()), size() > 1);
  run(order_.close());
}

}  // namespace kolo::runtime::launch_order_mpi_test
