// A Runtime whose messages move on only one thread per rank, which is not always inside Kolo.
#include <barrier>
#include <chrono>
#include <thread>

#include <gtest/gtest.h>

#include "kolo/collectives.hpp"
#include "runtime/runtimes.hpp"
#include "runtime/values.hpp"
#include "support/fake_world/deferred_world.hpp"

namespace kolo::test::messaging_thread_test {

using namespace std::chrono_literals;

constexpr int kRanks = 3;

/// A Runtime on each of three nodes, whose messages move only on the thread of `body`.
void run_deferred(const std::function<void(Runtime&)>& body) {
  run_ranks(kRanks,
            [&](FakeWorld& fake) {
              comm::MessagingThread thread;
              DeferredWorld world(fake, thread);
              Runtime runtime(options_in(world, test_config()));
              body(runtime);
            },
            {.nodes = kRanks, .longest_delay = 50us, .seed = 5, .rendezvous = true});
}

// Like a program that waits for its own MPI calls between calls of Kolo.
TEST(MessagingThreadTest, RanksThatHaveFinished_AreNotNeededByOthers) {
  std::barrier outside_of_kolo(kRanks);
  run_deferred([&](Runtime& runtime) {
    for (int i = 0; i < 200; ++i) {
      Tensor tensor(100);
      tensor.fill([&](std::size_t k) { return input_value(runtime.rank(), k); });
      Handle handle = allreduce_async(tensor.view(), tensor.view(),
                                      {.op = ReduceOp::Sum, .process_set = &runtime.world()});
      // Gives the background threads time to make all possible progress.
      if (i % 3 == runtime.rank()) std::this_thread::sleep_for(300us);
      handle.wait();
      outside_of_kolo.arrive_and_wait();
      tensor.expect([&](std::size_t k) { return input_sum(kRanks, k); }, "sum");
    }
  });
}

TEST(MessagingThreadTest, AskingWhetherAnOperationIsReady_MovesMessages) {
  run_deferred([](Runtime& runtime) {
    Tensor tensor(100);
    tensor.fill([&](std::size_t k) { return input_value(runtime.rank(), k); });
    const Handle handle = allreduce_async(tensor.view(), tensor.view(),
                                          {.op = ReduceOp::Sum, .process_set = &runtime.world()});
    const auto give_up_at = std::chrono::steady_clock::now() + 20s;
    while (!handle.is_ready() && std::chrono::steady_clock::now() < give_up_at) {
    }
    ASSERT_TRUE(handle.is_ready());
    tensor.expect([&](std::size_t k) { return input_sum(kRanks, k); }, "sum");
  });
}

// A thread that waits for one process set also moves the messages of the others, whose ranks may
// wait in another order.
TEST(MessagingThreadTest, WaitingForOneProcessSet_MovesTheMessagesOfAll) {
  run_deferred([](Runtime& runtime) {
    ProcessSet& one = runtime.add_process_set({0, 1, 2});
    ProcessSet& other = runtime.add_process_set({0, 1, 2});
    const bool is_first = runtime.rank() == 0;
    for (int i = 0; i < 20; ++i) {
      Tensor tensors[] = {Tensor(100), Tensor(100)};
      const auto start = [&](std::size_t which) {
        tensors[which].fill([&](std::size_t k) { return input_value(runtime.rank(), k); });
        return allreduce_async(tensors[which].view(), tensors[which].view(),
                               {.op = ReduceOp::Sum, .process_set = which == 0 ? &one : &other});
      };
      Handle handles[] = {start(0), start(1)};
      handles[is_first ? 0 : 1].wait();
      handles[is_first ? 1 : 0].wait();
      for (const Tensor& tensor : tensors) {
        tensor.expect([&](std::size_t k) { return input_sum(kRanks, k); }, "sum");
      }
    }
  });
}

}  // namespace kolo::test::messaging_thread_test
