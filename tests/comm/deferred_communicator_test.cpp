#include "comm/deferred_communicator.hpp"

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <thread>
#include <vector>

#include "contract/communicator_contract.hpp"
#include "contract/transfer_contract.hpp"
#include "support/fake_world/deferred_world.hpp"
#include "support/fake_world/fake_world.hpp"

namespace kolo::test::deferred_communicator_test {

using namespace std::chrono_literals;
using comm::DeferredCommunicator;
using comm::MessagingThread;

/// Runs `body` on a thread that must not move messages, while the calling thread serves.
void run_beside_server(MessagingThread& thread, const std::function<void()>& body) {
  std::atomic<bool> has_ended{false};
  std::exception_ptr error;
  {
    const std::jthread other([&] {
      try {
        body();
      } catch (...) {
        error = std::current_exception();
      }
      has_ended = true;
    });
    while (!has_ended) {
      if (!thread.serve()) std::this_thread::sleep_for(5us);
    }
  }
  if (error) std::rethrow_exception(error);
}

template <bool is_on_messaging_thread>
struct DeferredRanks {
  static std::vector<int> sizes() { return {1, 2, 3, 4}; }
  static void run(int size, const std::function<void(comm::World&)>& body) {
    run_ranks(size,
              [&](FakeWorld& fake) {
                MessagingThread thread;
                DeferredWorld world(fake, thread);
                if (is_on_messaging_thread) {
                  body(world);
                } else {
                  run_beside_server(thread, [&] { body(world); });
                }
              },
              {.longest_delay = 50us, .seed = 21, .rendezvous = true});
  }
};
using OnMessagingThread = DeferredRanks<true>;
using OnAnotherThread = DeferredRanks<false>;

INSTANTIATE_TYPED_TEST_SUITE_P(OnMessagingThread, CommunicatorContract, OnMessagingThread);
INSTANTIATE_TYPED_TEST_SUITE_P(OnMessagingThread, TransferContract, OnMessagingThread);
INSTANTIATE_TYPED_TEST_SUITE_P(OnAnotherThread, CommunicatorContract, OnAnotherThread);
INSTANTIATE_TYPED_TEST_SUITE_P(OnAnotherThread, TransferContract, OnAnotherThread);

/// The communicator of a single rank, which sends to itself.
struct SingleRank {
  explicit SingleRank(FakeWorld& world) : communicator(world.make_communicator(), thread) {}

  MessagingThread thread;
  DeferredCommunicator communicator;
};

void on_another_thread(const std::function<void()>& body) { const std::jthread other(body); }

TEST(DeferredCommunicatorTest, AnotherThread_MovesNothingUntilServed) {
  run_ranks(1, [](FakeWorld& world) {
    SingleRank rank(world);
    const std::byte sent{7};
    std::byte received{0};
    Transfer receive;
    Transfer send;
    on_another_thread([&] {
      receive = rank.communicator.receive({&received, 1}, 0, 3);
      send = rank.communicator.send({&sent, 1}, 0, 3);
      EXPECT_FALSE(receive.ready());
      EXPECT_FALSE(send.ready());
      EXPECT_FALSE(rank.thread.serve());  // wrong thread
    });
    EXPECT_EQ(received, std::byte{0});
    while (rank.thread.serve()) {
    }
    EXPECT_EQ(received, std::byte{7});
    on_another_thread([&] {
      EXPECT_TRUE(receive.ready());
      EXPECT_TRUE(send.ready());
    });
  });
}

// Messages of one tag arrive in the order of the calls, whichever threads make them.
TEST(DeferredCommunicatorTest, QueuedMessagesAreSentBeforeLaterOnes) {
  run_ranks(1, [](FakeWorld& world) {
    SingleRank rank(world);
    const std::vector<std::byte> sent{std::byte{1}, std::byte{2}};
    std::vector<std::byte> received(2);
    Transfer first;
    on_another_thread([&] { first = rank.communicator.send({sent.data(), 1}, 0, 3); });
    Transfer second = rank.communicator.send({&sent[1], 1}, 0, 3);
    Transfer receive_first = rank.communicator.receive({received.data(), 1}, 0, 3);
    Transfer receive_second = rank.communicator.receive({&received[1], 1}, 0, 3);
    for (Transfer* const transfer : {&first, &second, &receive_first, &receive_second}) {
      while (!transfer->ready()) {
      }
    }
    EXPECT_EQ(received, sent);
  });
}

// A probe finds a message again only if it comes after the message's receive.
TEST(DeferredCommunicatorTest, Probe_FindsEachMessageOnce) {
  run_ranks(1, [](FakeWorld& world) {
    SingleRank rank(world);
    const std::vector<std::byte> sent(5);
    std::vector<std::byte> received(5);
    Transfer first = rank.communicator.send({sent.data(), 2}, 0, 3);
    Transfer second = rank.communicator.send({sent.data(), 5}, 0, 3);
    const auto probe_beside_server = [&] {
      std::size_t found = 0;
      run_beside_server(rank.thread, [&] {
        while (found == 0)
          found = rank.communicator.probe(3).value_or(Communicator::Envelope{}).size_bytes;
        // Gives the server time to find the same message again.
        std::this_thread::sleep_for(2ms);
        Transfer receive = rank.communicator.receive({received.data(), found}, 0, 3);
        while (!receive.ready()) {
        }
      });
      return found;
    };
    EXPECT_EQ(probe_beside_server(), 2u);
    EXPECT_EQ(probe_beside_server(), 5u);
    while (!first.ready() || !second.ready()) {
    }
    EXPECT_FALSE(rank.communicator.probe(3).has_value());
  });
}

TEST(DeferredCommunicatorTest, Probe_SkipsWhatAnotherThreadIsReceiving) {
  run_ranks(1, [](FakeWorld& world) {
    SingleRank rank(world);
    const std::byte sent{7};
    std::byte received{0};
    Transfer send = rank.communicator.send({&sent, 1}, 0, 3);
    Transfer receive;
    on_another_thread([&] { receive = rank.communicator.receive({&received, 1}, 0, 3); });
    EXPECT_FALSE(rank.communicator.probe(3).has_value());
    while (!send.ready() || !receive.ready()) {
    }
    EXPECT_EQ(received, std::byte{7});
  });
}

TEST(DeferredCommunicatorTest, GivenUpReceives_NeverStart) {
  run_ranks(1, [](FakeWorld& world) {
    SingleRank rank(world);
    const std::byte sent{7};
    std::byte started{0};
    std::byte queued{0};
    Transfer receives[2];
    receives[0] = rank.communicator.receive({&started, 1}, 0, 3);
    on_another_thread([&] {
      receives[1] = rank.communicator.receive({&queued, 1}, 0, 4);
      EXPECT_EQ(rank.communicator.give_up_receives().from, std::vector<int>{0});  // not yet
    });
    rank.thread.serve();
    on_another_thread([&] { EXPECT_TRUE(rank.communicator.give_up_receives().from.empty()); });
    Transfer to_started = rank.communicator.send({&sent, 1}, 0, 3);
    Transfer to_queued = rank.communicator.send({&sent, 1}, 0, 4);
    while (!to_started.ready() || !to_queued.ready()) {
    }
    rank.thread.serve();
    EXPECT_EQ(started, std::byte{0});
    EXPECT_EQ(queued, std::byte{0});
  });
}

TEST(DeferredCommunicatorTest, AbandonedReceive_IsCancelledByTheServer) {
  run_ranks(1, [](FakeWorld& world) {
    SingleRank rank(world);
    const std::byte sent{7};
    std::byte received{0};
    Transfer receive = rank.communicator.receive({&received, 1}, 0, 3);
    run_beside_server(rank.thread, [&] { receive = Transfer(); });
    Transfer send = rank.communicator.send({&sent, 1}, 0, 3);
    while (!send.ready()) {
    }
    EXPECT_EQ(received, std::byte{0});
  });
}

// An error of the inner communicator is thrown to the thread that waits, not to the serving one.
TEST(DeferredCommunicatorTest, Errors_BelongToTheTransfer) {
  run_ranks(1, [](FakeWorld& world) {
    SingleRank rank(world);
    const std::vector<std::byte> sent(3);
    std::vector<std::byte> received(2);
    Transfer receive;
    on_another_thread([&] { receive = rank.communicator.receive(received, 0, 3); });
    Transfer send = rank.communicator.send(sent, 0, 3);
    bool has_failed = false;
    run_beside_server(rank.thread, [&] {
      try {
        while (!receive.ready()) {
        }
      } catch (const BackendError&) {
        has_failed = true;
      }
    });
    EXPECT_TRUE(has_failed);
  });
}

}  // namespace kolo::test::deferred_communicator_test
