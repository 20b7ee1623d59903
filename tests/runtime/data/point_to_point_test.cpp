// What messages between two ranks cost while others of them wait.
#include "runtime/data/point_to_point.hpp"

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "compression/registry.hpp"
#include "kolo/config.hpp"
#include "ops/registry.hpp"

namespace kolo::runtime::point_to_point_test {

using namespace std::chrono_literals;

/// A communicator of rank 0 of two; rank 1 neither sends nor receives.
class SilentCommunicator final : public Communicator {
 public:
  int probes = 0;
  int tests = 0;

  int rank() const override { return 0; }
  int size() const override { return 2; }
  Transfer send(std::span<const std::byte>, int, int) override { return {*this, 0}; }
  Transfer receive(std::span<std::byte>, int, int) override { return {*this, 0}; }
  std::optional<Envelope> probe(int) override {
    ++probes;
    return std::nullopt;
  }
  UnderWay give_up_receives() override { return {}; }

 private:
  bool test(std::uint64_t) override {
    ++tests;
    return false;
  }
  void abandon(std::uint64_t) noexcept override {}
};

class PointToPointTest : public testing::Test {
 protected:
  PointToPointTest() {
    auto silent = std::make_unique<SilentCommunicator>();
    communicator_ = silent.get();
    messages_.emplace(set_, std::move(silent));
  }

  void start(Collective collective, std::int64_t count, std::int64_t tag, int peer = 1) {
    auto operation = std::make_shared<Operation>();
    operation->request.collective = collective;
    operation->request.tensors = {{DType::Float32, {count}}};
    TensorMemory& memory = operation->tensors.emplace_back();
    memory.output = reinterpret_cast<std::byte*>(memory_.data());
    memory.input = memory.output;
    operation->message = {.peer = peer, .tag = tag};
    messages_->start(std::move(operation));
  }

  const PointToPoint::Clock::time_point now_ = PointToPoint::Clock::now();
  std::vector<float> memory_ = std::vector<float>(1000);
  ops::Registry algorithms_;
  compression::Registry compressors_;
  Config config_;
  SetContext set_{.choices = {algorithms_, compressors_, {}},
                  .config = config_,
                  .name = "world",
                  .world_ranks = {0, 1}};
  SilentCommunicator* communicator_ = nullptr;
  std::optional<PointToPoint> messages_;
};

TEST_F(PointToPointTest, HoweverManyWait_AStepProbesOnce) {
  for (int waiting = 0; waiting < 256; waiting += 2) {
    start(Collective::Receive, 5, waiting, waiting % 4 == 0 ? -1 : 1);
    start(Collective::Send, 1000, waiting);
    messages_->advance(now_);
    communicator_->probes = 0;
    communicator_->tests = 0;
    messages_->advance(now_);
    ASSERT_EQ(communicator_->probes, 1) << waiting;
    ASSERT_EQ(communicator_->tests, 0) << waiting;
  }
}

TEST_F(PointToPointTest, WhereNothingWaits_ItLooksNowAndThen) {
  for (int step = 0; step < 10; ++step) messages_->advance(now_ + step * 100us);
  EXPECT_EQ(communicator_->probes, 1);
  messages_->advance(now_ + 1ms);
  EXPECT_EQ(communicator_->probes, 2);
}

TEST_F(PointToPointTest, ASend_CostsTheSameHoweverManyAreUnfinished) {
  messages_->advance(now_);
  for (int sent = 0; sent < 600; ++sent) {
    start(Collective::Send, 100, 0);
    messages_->advance(now_);
    ASSERT_TRUE(messages_->take_ended());
  }
  EXPECT_EQ(communicator_->tests, 0);
  messages_->advance(now_ + 1ms);
  EXPECT_EQ(communicator_->tests, 1) << "the first, without which those behind it need none";
}

}  // namespace kolo::runtime::point_to_point_test
