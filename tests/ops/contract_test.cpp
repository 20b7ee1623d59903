// The suites of tests/contract/ notice algorithms that break their promises.

#include <array>
#include <cstddef>
#include <exception>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>

#include "contract/algorithm_contract.hpp"

namespace kolo::test::contract_test {

constexpr int kTag = 3;
constexpr std::size_t kSegmentBytes = 64;

class ContractTest : public testing::TestWithParam<Schedule> {
 protected:
  /// Runs an algorithm on two ranks. Returns the text of the failure; empty if there is none.
  static std::string failure_of(Task (*run)(CollectiveCall)) {
    const Algorithm algorithm{.name = "in_test",
                              .collective = Collective::AllReduce,
                              .needs = Needs::Messages,
                              .rank_ordered = false,
                              .run = run};
    const auto task = [&](const Rank& rank) {
      return run_checked(rank, algorithm, {.segment_bytes = kSegmentBytes});
    };
    try {
      run_tasks_on_ranks(2, kContractWindowBytes, kFirstSeed, task, GetParam());
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  }
};

Task send_to_itself(CollectiveCall call, std::size_t bytes, int tag) {
  Communicator& communicator = *call.communicator;
  std::array<std::byte, 2 * kSegmentBytes> sent{};
  std::array<std::byte, 2 * kSegmentBytes> received{};
  Transfer send = communicator.send({sent.data(), bytes}, communicator.rank(), tag);
  co_await communicator.receive({received.data(), bytes}, communicator.rank(), tag);
  co_await send;
}

TEST_P(ContractTest, OneSegmentAndTheLastTag_AreAllowed) {
  const std::string text = failure_of([](CollectiveCall call) {
    return send_to_itself(call, kSegmentBytes, kAlgorithmTagCount - 1);
  });
  EXPECT_EQ(text, "");
}

TEST_P(ContractTest, MessageLongerThanASegment_IsNoticed) {
  const std::string text =
      failure_of([](CollectiveCall call) { return send_to_itself(call, kSegmentBytes + 1, kTag); });
  EXPECT_NE(text.find("send of 65 bytes, but segment_bytes is 64"), std::string::npos) << text;
}

TEST_P(ContractTest, TagOfTheRuntime_IsNoticed) {
  const std::string text =
      failure_of([](CollectiveCall call) { return send_to_itself(call, 1, kAlgorithmTagCount); });
  EXPECT_NE(text.find("send with tag 128"), std::string::npos) << text;
}

TEST_P(ContractTest, TransferThatIsNotAwaited_IsNoticed) {
  const std::string text = failure_of([](CollectiveCall call) -> Task {
    std::array<std::byte, 1> byte{};
    const int other = 1 - call.communicator->rank();
    const Transfer receive = call.communicator->receive(byte, other, kTag);
    co_return;
  });
  EXPECT_NE(text.find("did not await 1 of its transfers"), std::string::npos) << text;
}

// Otherwise the test would be killed after its time limit, and the failure's text would be lost.
TEST_P(ContractTest, FailureOfOneRank_EndsTheOthers) {
  const std::string text = failure_of([](CollectiveCall call) -> Task {
    if (call.communicator->rank() == 1) throw std::runtime_error("out of paper");
    std::array<std::byte, 1> byte{};
    co_await call.communicator->receive(byte, 1, kTag);
  });
  EXPECT_NE(text.find("out of paper"), std::string::npos) << text;
}

INSTANTIATE_TEST_SUITE_P(Schedules, ContractTest,
                         testing::Values(Schedule::Threads, Schedule::Interleaved),
                         [](const auto& instance) {
                           return instance.param == Schedule::Threads ? "Threads" : "Interleaved";
                         });

}  // namespace kolo::test::contract_test
