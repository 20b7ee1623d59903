// Sends and receives: what matches what, and how they end.
#include "kolo/messages.hpp"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "runtime/deaths.hpp"
#include "runtime/every_world.hpp"
#include "runtime/values.hpp"
#include "support/fake_world/fault_world.hpp"

namespace kolo::test::messages_test {

using namespace std::chrono_literals;

// Without data; short; the longest short one; the shortest long one; several segments.
constexpr std::int64_t kCounts[]{0, 1, 512, 513, 100'001};

class MessagesTest : public EveryWorldTest {
 protected:
  /// A rank that leaves closes the world for the messages of others.
  void run_to_the_end(const std::function<void(Runtime&)>& body) {
    run([&](Runtime& runtime) {
      body(runtime);
      barrier();
    });
  }
};

INSTANTIATE_TEST_SUITE_P(, MessagesTest, testing::ValuesIn(cpu_settings()),
                         [](const auto& setting) {
                           return setting.param.name + "Np" + std::to_string(setting.param.size);
                         });

Tensor message(int from, std::int64_t count, std::size_t salt = 0) {
  Tensor tensor(count);
  tensor.fill([&](std::size_t i) { return input_value(from, i, salt); });
  return tensor;
}

void expect_message(const Tensor& tensor, int from, std::size_t salt = 0) {
  tensor.expect([&](std::size_t i) { return input_value(from, i, salt); },
                "from rank " + std::to_string(from));
}

// Also to itself, in a world of one rank.
TEST_P(MessagesTest, AroundARing) {
  run_to_the_end([&](Runtime& runtime) {
    const int to = (runtime.rank() + 1) % size();
    const int from = (runtime.rank() + size() - 1) % size();
    for (const std::int64_t count : kCounts) {
      const Tensor sent = message(runtime.rank(), count);
      Handle sending = send_async(sent.view(), to);
      Tensor received(count);
      EXPECT_EQ(receive(received.view(), from), from);
      expect_message(received, from);
      sending.wait();
    }
  });
}

TEST_P(MessagesTest, OfOneTag_ArriveInOrder_AndThoseOfOthersDoNotWait) {
  run_to_the_end([&](Runtime& runtime) {
    const int to = (runtime.rank() + 1) % size();
    const int from = (runtime.rank() + size() - 1) % size();
    std::vector<Tensor> sent;
    std::vector<Handle> handles;
    for (std::size_t i = 0; i < 12; ++i) {  // tags 0, 1, 2; short and long in turn
      sent.push_back(message(runtime.rank(), i % 2 == 0 ? 10 : 2000, i));
      handles.push_back(send_async(sent.back().view(), to, {.tag = static_cast<int>(i % 3)}));
    }
    for (const std::size_t tag : {2U, 0U, 1U}) {
      for (std::size_t i = tag; i < 12; i += 3) {
        Tensor received(i % 2 == 0 ? 10 : 2000);
        receive(received.view(), from, {.tag = static_cast<int>(tag)});
        expect_message(received, from, i);
      }
    }
    for (Handle& handle : handles) handle.wait();
  });
}

// A send that nobody receives yet must not keep a collective from running, nor the reverse.
TEST_P(MessagesTest, AreIndependentOfCollectives) {
  run_to_the_end([&](Runtime& runtime) {
    const int rank = runtime.rank();
    std::vector<int> ranks{0};
    if (size() > 1) ranks.push_back(size() - 1);
    ProcessSet& set = runtime.add_process_set(ranks, Matching::ByOrder);
    if (!set.included()) return;
    const int other = rank == 0 ? set.ranks().back() : 0;
    for (ProcessSet* const each : {&runtime.world(), &set}) {
      const Tensor sent = message(rank, 5000);
      Tensor received(5000);
      Handle sending;
      Handle receiving;
      if (rank == 0) sending = send_async(sent.view(), other, {.process_set = each});
      if (rank != 0) receiving = receive_async(received.view(), 0, {.tag = 1, .process_set = each});
      expect_sum_works(set, "sum");
      if (rank == 0) {
        if (other == 0) receiving = receive_async(received.view(), 0, {.process_set = each});
        sending.wait();
        if (other == 0) receiving.wait();
        if (other != 0) send(sent.view(), other, {.tag = 1, .process_set = each});
      } else {
        Tensor first(5000);
        receive(first.view(), 0, {.process_set = each});
        expect_message(first, 0);
        receiving.wait();
        expect_message(received, 0);
      }
    }
  });
}

TEST_P(MessagesTest, FromAnyRank_NameTheSender) {
  run_to_the_end([&](Runtime& runtime) {
    for (const std::int64_t count : {3, 3000}) {
      if (runtime.rank() != 0) {
        send(message(runtime.rank(), count).view(), 0, {.tag = count});
        continue;
      }
      std::vector<bool> has_come(static_cast<std::size_t>(size()));
      for (int other = 1; other < size(); ++other) {
        Tensor received(count);
        const int from = receive(received.view(), kAnyRank, {.tag = count});
        ASSERT_GT(from, 0);
        expect_message(received, from);
        EXPECT_FALSE(has_come[static_cast<std::size_t>(from)]);
        has_come[static_cast<std::size_t>(from)] = true;
      }
    }
  });
}

// More than there are tags for data on the way.
TEST_P(MessagesTest, ManyLongOnesAtOnce) {
  constexpr std::size_t kMany = 600;
  run_to_the_end([&](Runtime& runtime) {
    const int to = size() - 1;
    std::vector<Tensor> sent;
    std::vector<Tensor> received;
    std::vector<Handle> handles;
    for (std::size_t i = 0; i < kMany && runtime.rank() == 0; ++i) {
      sent.push_back(message(0, 600, i));
      handles.push_back(send_async(sent.back().view(), to));
    }
    for (std::size_t i = 0; i < kMany && runtime.rank() == to; ++i) {
      received.emplace_back(600);
      handles.push_back(receive_async(received.back().view(), 0));
    }
    for (Handle& handle : handles) handle.wait();
    for (std::size_t i = 0; i < received.size(); ++i) expect_message(received[i], 0, i);
  });
}

class MessageErrorsTest : public testing::TestWithParam<Setting> {};

INSTANTIATE_TEST_SUITE_P(, MessageErrorsTest,
                         testing::Values(Setting{.name = "Shared", .size = 2},
                                         Setting{.name = "Messages",
                                                 .size = 3,
                                                 .network = {.longest_delay = 100us,
                                                             .rendezvous = true,
                                                             .has_shared_memory = false}}),
                         [](const auto& setting) { return setting.param.name; });

TEST_P(MessageErrorsTest, AnotherSizeOrType_IsAMismatch) {
  run_runtimes(GetParam(), [&](Runtime& runtime) {
    const auto expect_text = [](const std::string& text) {
      expect_contains(text, "600 elements of float32");
      expect_contains(text, "1200 elements of int16");
      expect_contains(text, "with tag 7");
    };
    if (runtime.rank() == 0) {
      const Tensor floats = message(0, 600);
      const std::string text = text_thrown_by<MismatchError>(
          [&] { send(floats.view(), 1, {.tag = 7, .name = "halves"}); });
      expect_text(text);
      expect_contains(text, "send 'halves' on process set world: rank 0 sends 600");
      send(message(0, 3).view(), 1);
    } else if (runtime.rank() == 1) {
      Tensor halves(1200, DType::Int16);
      expect_text(text_thrown_by<MismatchError>([&] { receive(halves.view(), 0, {.tag = 7}); }));
      Tensor four(4);
      expect_contains(text_thrown_by<MismatchError>([&] { receive(four.view(), 0); }),
                      "rank 1 receives 4 elements of float32, rank 0 sends 3 elements of float32");
    }
    expect_sum_works(runtime, "the set goes on");
  });
}

TEST_P(MessageErrorsTest, WithoutAnotherSide_EndAtTheDeadline) {
  std::latch has_given_up(1);
  run_runtimes(GetParam(), [&](Runtime& runtime) {
    if (runtime.rank() == 0) {
      {
        const CountDown done(has_given_up);
        const Tensor lost = message(0, 5000, 1);
        const std::string text = text_thrown_by<TimeoutError>(
            [&] { send(lost.view(), 1, {.tag = 4, .timeout = 100ms}); });
        expect_contains(text, "rank 1 has posted no receive for tag 4 in time");
        Tensor tensor(5);
        expect_contains(text_thrown_by<TimeoutError>(
                            [&] { receive(tensor.view(), 1, {.tag = 5, .timeout = 100ms}); }),
                        "no message with tag 5 from rank 1 has arrived in time");
        expect_contains(text_thrown_by<TimeoutError>([&] {
                          receive(tensor.view(), kAnyRank, {.tag = 5, .timeout = 100ms});
                        }),
                        "from any rank");
      }
      send(message(0, 5000, 2).view(), 1, {.tag = 4});
    } else if (runtime.rank() == 1) {
      has_given_up.wait();
      Tensor received(5000);  // takes the message that is sent, not the one that was given up
      receive(received.view(), 0, {.tag = 4});
      expect_message(received, 0, 2);
    }
    expect_sum_works(runtime, "the set goes on");
  });
}

// A message may be given up when a receive has just taken it, and a later receive the next one.
TEST_P(MessageErrorsTest, AMessageThatIsGivenUp_LeavesTheOthersInOrder) {
  run_runtimes(GetParam(), [&](Runtime& runtime) {
    for (int round = 0; round < 200; ++round) {
      Tensor flag(1);
      if (runtime.rank() == 0) {
        std::vector<Tensor> sent;
        for (std::size_t i = 0; i < 3; ++i) sent.push_back(message(0, 600, i));
        Handle first =
            send_async(sent[0].view(), 1, {.timeout = std::chrono::microseconds(2 * round)});
        Handle second = send_async(sent[1].view(), 1);
        Handle third = send_async(sent[2].view(), 1);
        double is_given_up = 0.0;
        try {
          first.wait();
        } catch (const TimeoutError&) {
          is_given_up = 1.0;
        }
        flag.fill([&](std::size_t) { return is_given_up; });
        send(flag.view(), 1, {.tag = 1});
        second.wait();
        third.wait();
      } else if (runtime.rank() == 1) {
        std::vector<Tensor> received;
        std::vector<Handle> handles;
        for (std::size_t i = 0; i < 3; ++i) {
          received.emplace_back(600);
          if (i < 2) handles.push_back(receive_async(received[i].view(), 0));
        }
        receive(flag.view(), 0, {.tag = 1});
        std::size_t next = flag.at(0) == 0.0 ? 0 : 1;
        for (std::size_t i = 0; i < 3; ++i) {
          try {
            if (i < 2) handles[i].wait();
            if (i == 2 && next < 3) receive(received[2].view(), 0);
          } catch (const TimeoutError& error) {
            expect_contains(error.what(), "gave up the message that it takes");
            continue;
          }
          if (next < 3) expect_message(received[i], 0, next++);
        }
        ASSERT_EQ(next, 3U) << "round " << round;
      }
    }
    expect_sum_works(runtime, "the set goes on");
  });
}

TEST_P(MessageErrorsTest, OfASetThatIsClosed_EndWithIt) {
  run_runtimes(GetParam(), [&](Runtime& runtime) {
    expect_sum_works(runtime, "all have begun");
    Tensor tensor(5000);
    if (runtime.rank() == 1) {
      Handle receiving = receive_async(tensor.view(), 0, {.tag = 1});
      runtime.shutdown();
      EXPECT_THROW(receiving.wait(), ShutdownError);
      return;
    }
    if (runtime.rank() == 0) {
      expect_contains(text_thrown_by<ShutdownError>([&] { send(tensor.view(), 1); }),
                      "rank 1 shut Kolo down");
    }
    EXPECT_THROW(receive(tensor.view(), 1), ShutdownError);
  });
}

// The receiver knows that the sender has left before it looks for the messages.
TEST_P(MessageErrorsTest, WhatWasSentBeforeItsRankLeft_Arrives) {
  run_runtimes(GetParam(), [&](Runtime& runtime) {
    if (runtime.rank() == 0) {
      send(message(0, 512, 1).view(), 1);
      send(message(0, 3, 2).view(), 1);
      return;
    }
    EXPECT_THROW(barrier(), ShutdownError);
    if (runtime.rank() > 1) return;
    Tensor first(512);
    Tensor second(3);
    receive(first.view(), 0);
    EXPECT_EQ(receive(second.view(), kAnyRank), 0);
    expect_message(first, 0, 1);
    expect_message(second, 0, 2);
    EXPECT_THROW(receive(first.view(), kAnyRank), ShutdownError);
    EXPECT_THROW(send(first.view(), 0), ShutdownError);
  });
}

TEST_P(MessageErrorsTest, OfADeadRank_AreALoss) {
  run_with_death(
      GetParam(), 1, [](Runtime& runtime) { expect_sum_works(runtime, "x"); },
      [&](FakeWorld&) {
        Tensor tensor(5000);
        EXPECT_THROW(receive(tensor.view(), 1), PeerLostError);
        EXPECT_THROW(send(tensor.view(), 1), PeerLostError);
      });
}

TEST_P(MessageErrorsTest, InvalidArguments_ThrowAtTheCall) {
  run_runtimes(GetParam(), [&](Runtime& runtime) {
    Tensor tensor(5);
    const auto text_of = [&](const std::function<void()>& call) {
      return text_thrown_by<InvalidArgument>(call);
    };
    expect_contains(text_of([&] { send(tensor.view(), 9, {.name = "x"}); }),
                    "send 'x' on process set world: rank 9 is not a member");
    expect_contains(text_of([&] { send(tensor.view(), kAnyRank); }), "rank -1 is not a member");
    ProcessSet& set = runtime.add_process_set({0});
    if (runtime.rank() == 0) {
      expect_contains(text_of([&] { receive(tensor.view(), 1, {.process_set = &set}); }),
                      "rank 1 is not a member");
    } else {
      EXPECT_THROW(receive(tensor.view(), 0, {.process_set = &set}), InvalidArgument);
    }
    TensorView on_gpu = tensor.view();
    on_gpu.device = {DeviceKind::Cuda, 0};
    expect_contains(text_of([&] { send(on_gpu, 1); }), "messages are for CPU memory");
    expect_sum_works(runtime, "the set goes on");
  });
}

constexpr int kWorldMessagesChannel = 6;
constexpr int kFirstSetMessagesChannel = 20;

// The last message, or the answer to its offer, is on its way when the set is closed.
void expect_arrival(int late, std::int64_t count, bool is_removed) {
  std::latch are_posted(2);
  std::atomic<bool> is_closed{false};
  run_ranks(2, [&](FakeWorld& fake) {
    const int rank = fake.topology().rank;
    const Fault delay{.kind = Fault::Kind::Delay,
                      .channel = is_removed ? kFirstSetMessagesChannel : kWorldMessagesChannel,
                      .until = &is_closed};
    const std::vector<Fault> faults(rank == late ? 1 : 0, delay);
    FaultWorld world(std::shared_ptr<comm::World>(std::shared_ptr<void>(), &fake), faults);
    Runtime runtime(options_in(world, test_config()));
    ProcessSet& set = is_removed ? runtime.add_process_set({0, 1}) : runtime.world();
    Tensor tensor = rank == 0 ? message(0, count) : Tensor(count);
    Handle handle;
    std::jthread watcher;
    if (rank == 0) {
      handle = send_async(tensor.view(), 1, {.process_set = &set});
    } else {
      handle = receive_async(tensor.view(), 0, {.process_set = &set});
      watcher = std::jthread([&] {
        EXPECT_THROW(barrier({.process_set = &set}), ShutdownError);
        is_closed = true;
      });
    }
    are_posted.arrive_and_wait();
    if (is_removed) {
      runtime.remove_process_set(set);
    } else {
      runtime.shutdown();
    }
    handle.wait();
    expect_message(tensor, 0);
  });
}

TEST(MessagesOfAClosedSetTest, OnTheirWay_Arrive) {
  for (const bool is_removed : {false, true}) {
    expect_arrival(0, 512, is_removed);
    expect_arrival(1, 5000, is_removed);
  }
}

// More long ones than there are tags for data on the way: some are asked for after the last.
TEST(MessagesOfAClosedSetTest, ThatAreMatched_Move) {
  constexpr std::size_t kMany = 600;
  std::latch are_posted(2);
  run_runtimes({.size = 2, .network = {.longest_delay = 100us, .rendezvous = true}},
               [&](Runtime& runtime) {
                 std::vector<Tensor> tensors;
                 std::vector<Handle> handles;
                 for (std::size_t i = 0; i < kMany; ++i) {
                   const bool sends = runtime.rank() == 0;
                   tensors.push_back(sends ? message(0, 600, i) : Tensor(600));
                   handles.push_back(sends ? send_async(tensors.back().view(), 1)
                                           : receive_async(tensors.back().view(), 0));
                 }
                 are_posted.arrive_and_wait();
                 runtime.shutdown();
                 for (std::size_t i = 0; i < kMany; ++i) {
                   handles[i].wait();
                   expect_message(tensors[i], 0, i);
                 }
               });
}

TEST(MessagesOfAClosedSetTest, ThatNobodyReceives_AreGoneWithIt) {
  run_ranks(2,
            [](FakeWorld& world) {
              Runtime runtime(options_in(world, test_config()));
              ProcessSet& set = runtime.add_process_set({0, 1});
              const Tensor tensor(600);
              Handle sending;
              if (runtime.rank() == 0) {
                const Tensor small(5);
                for (int i = 0; i < 100; ++i) send(small.view(), 1, {.process_set = &set});
                sending = send_async(tensor.view(), 1, {.process_set = &set});
              }
              runtime.remove_process_set(set);
              if (runtime.rank() == 0) {
                EXPECT_THROW(sending.wait(), ShutdownError);
              }
              const std::vector<int> both{0, 1};
              EXPECT_FALSE(world.make_communicator(both, kFirstSetMessagesChannel)->probe(0));
            },
            {.rendezvous = true});
}

}  // namespace kolo::test::messages_test
