// The suites of tests/contract/ notice algorithms that break their promises.

#include <array>
#include <cstddef>
#include <functional>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>

#include "contract/algorithm_contract.hpp"

namespace kolo::test::contract_test {

constexpr int kTag = 3;
constexpr std::size_t kSegmentBytes = 64;

/// Runs `make_task` on two ranks with checked communicators. Returns the text of the failure.
std::string failure_of(const std::function<Task(Communicator&)>& make_task, Schedule schedule) {
  const auto run = [&](const Rank& rank) -> Task {
    CheckedCommunicator communicator(rank.communicator, kSegmentBytes);
    co_await make_task(communicator);
    communicator.check_all_ready();
  };
  try {
    run_tasks_on_ranks(2, kContractWindowBytes, kFirstSeed, run, schedule);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

class ContractTest : public testing::TestWithParam<Schedule> {};

Task send_to_itself(Communicator& communicator, std::size_t bytes, int tag) {
  std::array<std::byte, 2 * kSegmentBytes> sent{};
  std::array<std::byte, 2 * kSegmentBytes> received{};
  Transfer send = communicator.send({sent.data(), bytes}, communicator.rank(), tag);
  co_await communicator.receive({received.data(), bytes}, communicator.rank(), tag);
  co_await send;
}

TEST_P(ContractTest, OneSegmentAndTheLastTag_AreAllowed) {
  const auto task = [](Communicator& communicator) {
    return send_to_itself(communicator, kSegmentBytes, kAlgorithmTagCount - 1);
  };
  EXPECT_EQ(failure_of(task, GetParam()), "");
}

TEST_P(ContractTest, MessageLongerThanASegment_IsNoticed) {
  const auto task = [](Communicator& communicator) {
    return send_to_itself(communicator, kSegmentBytes + 1, kTag);
  };
  const std::string text = failure_of(task, GetParam());
  EXPECT_NE(text.find("send of 65 bytes, but segment_bytes is 64"), std::string::npos) << text;
}

TEST_P(ContractTest, TagOfTheRuntime_IsNoticed) {
  const auto task = [](Communicator& communicator) {
    return send_to_itself(communicator, 1, kAlgorithmTagCount);
  };
  const std::string text = failure_of(task, GetParam());
  EXPECT_NE(text.find("send with tag 128"), std::string::npos) << text;
}

TEST_P(ContractTest, TransferThatIsNotReady_IsNoticed) {
  const auto task = [](Communicator& communicator) -> Task {
    std::array<std::byte, 1> byte{};
    const int other = 1 - communicator.rank();
    const Transfer receive = communicator.receive(byte, other, kTag);
    co_return;
  };
  const std::string text = failure_of(task, GetParam());
  EXPECT_NE(text.find("ended before 1 of its transfers"), std::string::npos) << text;
}

// Otherwise the failure's text would be lost: the test would be killed after its time limit.
TEST_P(ContractTest, FailureOfOneRank_EndsTheOthers) {
  const auto task = [](Communicator& communicator) -> Task {
    if (communicator.rank() == 1) throw std::runtime_error("out of paper");
    std::array<std::byte, 1> byte{};
    co_await communicator.receive(byte, 1, kTag);
  };
  const std::string text = failure_of(task, GetParam());
  EXPECT_NE(text.find("out of paper"), std::string::npos) << text;
}

INSTANTIATE_TEST_SUITE_P(Schedules, ContractTest,
                         testing::Values(Schedule::Threads, Schedule::Interleaved),
                         [](const auto& instance) {
                           return instance.param == Schedule::Threads ? "Threads" : "Interleaved";
                         });

}  // namespace kolo::test::contract_test
