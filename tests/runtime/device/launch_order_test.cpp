#include "runtime/device/launch_order.hpp"

#include <chrono>
#include <cstdint>
#include <latch>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "compression/registry.hpp"
#include "kolo/config.hpp"
#include "ops/registry.hpp"
#include "runtime/data/data_path.hpp"
#include "runtime/deaths.hpp"
#include "support/fake_world/fake_world.hpp"

namespace kolo::runtime::launch_order_test {

TEST(LaunchTicketsTest, EachRank_IsToldItsPreviousBatch) {
  using Numbers = LaunchTickets::Numbers;
  LaunchTickets tickets;
  EXPECT_EQ(tickets.next({0, 1}), (Numbers{0, 0, 1}));
  EXPECT_EQ(tickets.next({2, 1}), (Numbers{0, 1, 2}));
  EXPECT_EQ(tickets.next({0, 1, 2, 3}), (Numbers{1, 2, 2, 0, 3}));
  EXPECT_EQ(tickets.next({3}), (Numbers{3, 4}));
  EXPECT_EQ(tickets.next({3, 0}), (Numbers{4, 3, 5}));
}

/// A communicator of world rank 0 with a request in flight whose data may never arrive.
class HalfArrived final : public Communicator {
 public:
  struct State {
    bool is_here = false;
    int looks = 0;
    std::vector<int> answered;
  };
  explicit HalfArrived(State& state) : state_(state) {}

  int rank() const override { return 0; }
  int size() const override { return 3; }
  Transfer send(std::span<const std::byte>, int destination, int) override {
    state_.answered.push_back(destination);
    return {};
  }
  Transfer receive(std::span<std::byte>, int, int) override { return {*this, 1}; }
  std::optional<Envelope> probe(int) override {
    if (std::exchange(is_probed_, true)) return std::nullopt;
    return Envelope{2, 2 * sizeof(std::uint64_t)};
  }
  UnderWay give_up_receives() override { return {}; }

 private:
  bool test(std::uint64_t) override {
    if (++state_.looks > 100'000) throw std::runtime_error("somebody spins on the receive");
    return state_.is_here;
  }
  void abandon(std::uint64_t) noexcept override {}

  State& state_;
  bool is_probed_ = false;
};

/// Calls `serve` until it has tested the receive once more.
void poll_once(LaunchOrder& order, const HalfArrived::State& state) {
  for (const int before = state.looks; state.looks == before;) order.serve();
}

TEST(LaunchOrderTest, MissingQuestionBlocksNobody) {
  HalfArrived::State state;
  LaunchOrder order(std::make_unique<HalfArrived>(state));
  order.expect_questions();
  for (int look = 0; look < 3; ++look) poll_once(order, state);
  EXPECT_EQ(state.looks, 3) << "one a call";
  EXPECT_TRUE(state.answered.empty());
  state.is_here = true;
  poll_once(order, state);
  EXPECT_EQ(state.answered, std::vector<int>{2});
}

TEST(LaunchOrderTest, MissingQuestionIsGivenUpWithTheOrder) {
  HalfArrived::State state;
  {
    LaunchOrder order(std::make_unique<HalfArrived>(state));
    order.expect_questions();
    poll_once(order, state);
  }
  EXPECT_TRUE(state.answered.empty());
}

/// A process set of this rank alone, and the order over both ranks of the world.
struct LoneSet {
  explicit LoneSet(test::FakeWorld& world) : order(world.make_communicator()) {
    const std::vector<int> own{world.topology().rank};
    path.name = "alone";
    path.world_ranks = own;
    path.communicator = world.make_communicator(own, 1);
    path.node_of_rank = {0};
    order.expect_questions();
  }

  const Config config;
  const ops::Registry algorithms;
  const compression::Registry compressors;
  DataPath path{{algorithms, compressors, {}}, config};
  LaunchOrder order;
};

/// Polls for a while. @return whether the task has ended
bool ends(Task& task) {
  using Clock = std::chrono::steady_clock;
  const auto limit = Clock::now() + std::chrono::milliseconds(200);
  while (Clock::now() < limit) {
    if (task.poll() == Progress::Done) return true;
  }
  return false;
}

TEST(LaunchOrderTest, QuestionAfterRankZeroHasGivenUpClosing_GetsNoTicket) {
  std::latch has_given_up(1);
  test::run_ranks(2, [&](test::FakeWorld& world) {
    LoneSet set(world);
    if (world.topology().rank == 0) {
      const test::CountDown gives_up(has_given_up);
      Task closing = set.order.close();
      EXPECT_FALSE(ends(closing)) << "rank 1 has not answered";
      return;
    }
    has_given_up.wait();  // computes, without a look at messages
    LaunchOrder::Ticket ticket{.number = 1};
    Task entering = set.order.enter(set.path, ticket);
    EXPECT_TRUE(ends(entering));
    EXPECT_EQ(ticket.number, 0u);
    EXPECT_FALSE(ticket.is_world_lost);
  });
}

TEST(LaunchOrderTest, LossOfTheWorld_EndsTheWaitForAnAnswer) {
  std::latch may_end(1);
  test::run_ranks(2, [&](test::FakeWorld& world) {
    LoneSet set(world);
    if (world.topology().rank == 0) {
      may_end.wait();  // answers nothing
      return;
    }
    const test::CountDown ends_here(may_end);
    LaunchOrder::Ticket ticket{.number = 1};
    Task entering = set.order.enter(set.path, ticket);
    set.order.give_up();
    EXPECT_FALSE(ends(entering));
    EXPECT_EQ(set.order.world_loss(), "");
    set.order.give_up_world("rank 1 died");
    EXPECT_EQ(set.order.world_loss(), "rank 1 died");
    EXPECT_TRUE(ends(entering));
    EXPECT_EQ(ticket.number, 0u);
    EXPECT_TRUE(ticket.is_world_lost);
    LaunchOrder::Ticket next{.number = 1};
    Task again = set.order.enter(set.path, next);
    EXPECT_TRUE(ends(again));
    EXPECT_EQ(next.number, 0u);
    EXPECT_TRUE(next.is_world_lost);
  });
}

}  // namespace kolo::runtime::launch_order_test
