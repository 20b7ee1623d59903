#include "runtime/device/launch_order.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace kolo::runtime::launch_order_test {

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

}  // namespace kolo::runtime::launch_order_test
