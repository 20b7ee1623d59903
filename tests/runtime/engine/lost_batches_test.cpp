#include "runtime/engine/lost_batches.hpp"

#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/task.hpp"
#include "ops/registry.hpp"

namespace kolo::runtime::lost_batches_test {

using namespace std::chrono_literals;

/// A communicator of rank 0 of four; the test sets what is in flight.
class FailedCommunicator final : public Communicator {
 public:
  UnderWay under_way;
  int looks = 0;

  int rank() const override { return 0; }
  int size() const override { return 4; }
  Transfer send(std::span<const std::byte>, int, int) override { return {}; }
  Transfer receive(std::span<std::byte>, int, int) override { return {}; }
  std::optional<Envelope> probe(int) override { return std::nullopt; }
  UnderWay give_up_receives() override {
    ++looks;
    return under_way;
  }

 private:
  bool test(std::uint64_t) override { return true; }
  void abandon(std::uint64_t) noexcept override {}
};

class WorldWithDeadRanks final : public comm::World {
 public:
  std::vector<int> dead;

  const comm::Topology& topology() const override { return topology_; }
  std::unique_ptr<Communicator> make_communicator(std::span<const int>, int) override {
    return nullptr;
  }
  Task make_window(Communicator&, int, std::size_t, std::shared_ptr<SharedWindow>&) override {
    co_return;
  }
  std::vector<int> dead_peers() override { return dead; }
  void mark_broken() noexcept override {}

 private:
  comm::Topology topology_;
};

Task nothing() { co_return; }

class LostBatchesTest : public testing::Test {
 protected:
  LostBatchesTest() {
    set_.world_ranks = {10, 11, 12, 13};
    world_.dead = {13};
    LostBatches::Batches batches;
    batches.push_back({nothing(), {std::make_shared<Operation>()}, start_});
    lost_.add(std::move(batches));
  }

  std::size_t drained_after(LostBatches::Clock::duration waited) {
    return lost_.take_drained(start_ + waited).size();
  }

  const LostBatches::Clock::time_point start_{1h};
  const Config config_;
  const ops::Registry algorithms_;
  const compression::Registry compressors_;
  SetContext set_{.choices = {algorithms_, compressors_, {}}, .config = config_};
  FailedCommunicator collectives_;
  FailedCommunicator messages_;
  WorldWithDeadRanks world_;
  LostBatches lost_{set_, {&collectives_, &messages_}, world_};
};

TEST_F(LostBatchesTest, NothingInFlight_BatchesEndAtOnce) {
  EXPECT_EQ(drained_after(0ms), 1u);
  EXPECT_TRUE(lost_.empty());
  EXPECT_EQ(drained_after(1ms), 0u);
  EXPECT_EQ(collectives_.looks, 1) << "the communicator is left alone once they have ended";
}

TEST_F(LostBatchesTest, SendOfALiveRank_IsReceivedFirst) {
  collectives_.under_way.from = {3, 1};
  EXPECT_EQ(drained_after(0ms), 0u);
  EXPECT_EQ(drained_after(400ms), 0u);
  collectives_.under_way.from = {3};  // the dead rank's message will not arrive
  EXPECT_EQ(drained_after(401ms), 1u);
}

TEST_F(LostBatchesTest, ReceiveOfALiveRank_IsServedFirst) {
  collectives_.under_way.to = {2, 3};
  EXPECT_EQ(drained_after(0ms), 0u);
  EXPECT_EQ(drained_after(400ms), 0u);
  collectives_.under_way.to = {3};
  EXPECT_EQ(drained_after(401ms), 1u);
}

TEST_F(LostBatchesTest, SendOfADeadRank_IsReceivedFirst) {
  collectives_.under_way.from = {3};
  EXPECT_EQ(drained_after(0ms), 0u);
  EXPECT_EQ(drained_after(LostBatches::kDeadRankDelay - 1ms), 0u);
  EXPECT_EQ(drained_after(LostBatches::kDeadRankDelay), 1u);
}

TEST_F(LostBatchesTest, SilentLiveRank_DelaysBatchesForABoundedTime) {
  collectives_.under_way = {.from = {1}, .to = {2}};
  EXPECT_EQ(drained_after(0ms), 0u);
  EXPECT_EQ(drained_after(LostBatches::kMaxDrainTime - 1ms), 0u);
  EXPECT_EQ(drained_after(LostBatches::kMaxDrainTime), 1u);
}

TEST_F(LostBatchesTest, EitherCommunicator_DelaysBatches) {
  messages_.under_way.from = {1};
  EXPECT_EQ(drained_after(0ms), 0u);
  messages_.under_way.from = {};
  EXPECT_EQ(drained_after(1ms), 1u);
  EXPECT_EQ(collectives_.looks, 2) << "transfers move while they are looked at";
  EXPECT_EQ(messages_.looks, 2);
}

TEST_F(LostBatchesTest, Receives_AreCancelledBeforeBatchesEnd) {
  collectives_.under_way.from = {1};
  EXPECT_EQ(drained_after(0ms), 0u);
  EXPECT_EQ(collectives_.looks, 1);
  EXPECT_FALSE(lost_.empty());
}

}  // namespace kolo::runtime::lost_batches_test
