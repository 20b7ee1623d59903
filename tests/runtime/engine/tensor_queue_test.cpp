#include "runtime/engine/tensor_queue.hpp"

#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/error.hpp"

namespace kolo::runtime::tensor_queue_test {

std::shared_ptr<Operation> make(const std::string& name) {
  auto operation = std::make_shared<Operation>();
  operation->request.name = name;
  return operation;
}

std::shared_ptr<Operation> make_join() {
  const auto operation = std::make_shared<Operation>();
  operation->role = OperationRole::Join;
  return operation;
}

std::vector<std::string> names_of(const TensorQueue::Taken& taken) {
  std::vector<std::string> names;
  for (const auto& operation : taken.operations) names.push_back(operation->request.name);
  return names;
}

template <class Error, class Call>
std::string text_thrown_by(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(TensorQueueTest, Take_ReturnsSubmissionsInOrderOnce) {
  TensorQueue queue("world");
  const auto first = make("b");
  const auto second = make("a");
  queue.submit(first);
  queue.submit(second);
  queue.await(first->use);
  EXPECT_NE(first->use, second->use);
  const TensorQueue::Taken taken = queue.take();
  EXPECT_EQ(names_of(taken), (std::vector<std::string>{"b", "a"}));
  EXPECT_EQ(taken.awaited, std::vector{first->use});
  EXPECT_FALSE(taken.leaving);
  EXPECT_EQ(names_of(queue.take()), std::vector<std::string>{});
  EXPECT_EQ(queue.in_flight(), 2) << "until they are released";
}

TEST(TensorQueueTest, NameInFlight_IsRejectedUntilReleased) {
  TensorQueue queue("{0, 2}");
  const auto first = make("a");
  queue.submit(first);
  const std::string text = text_thrown_by<InvalidArgument>([&] { queue.submit(make("a")); });
  EXPECT_NE(text.find("'a' on process set {0, 2}: an operation of this name is still in flight"),
            std::string::npos)
      << text;
  queue.take();
  EXPECT_THROW(queue.submit(make("a")), InvalidArgument) << "taken, but not released";
  queue.release(*first);
  EXPECT_EQ(queue.in_flight(), 0);
  queue.submit(make("a"));
}

// They match by ranks and tags.
TEST(TensorQueueTest, NamesOfMessages_AreForTextsAlone) {
  TensorQueue queue("world");
  const auto make_message = [](Collective collective) {
    auto message = make("a");
    message->request.collective = collective;
    return message;
  };
  const auto sent = make_message(Collective::Send);
  queue.submit(sent);
  queue.submit(make("a"));
  queue.submit(make_message(Collective::Receive));
  queue.release(*sent);
  EXPECT_THROW(queue.submit(make("a")), InvalidArgument) << "the collective is in flight";
}

TEST(TensorQueueTest, Join_ComesAfterTheOperationsAndOnlyOnce) {
  TensorQueue queue("world");
  queue.submit(make("a"));
  const auto join = make_join();
  queue.join(join);
  EXPECT_THROW(queue.join(make_join()), InvalidArgument);
  const TensorQueue::Taken taken = queue.take();
  EXPECT_EQ(names_of(taken), std::vector<std::string>{"a"});
  EXPECT_EQ(taken.join, join);
  EXPECT_THROW(queue.join(make_join()), InvalidArgument) << "taken, but not released";
  queue.release(*join);
  queue.join(make_join());
}

TEST(TensorQueueTest, AutomaticNames_CountPerKindAndAnewAfterAJoin) {
  TensorQueue queue("world");
  EXPECT_EQ(queue.next_name("allreduce"), "allreduce.unnamed.0");
  EXPECT_EQ(queue.next_name("allreduce"), "allreduce.unnamed.1");
  EXPECT_EQ(queue.next_name("broadcast"), "broadcast.unnamed.0");
  const auto operation = make("a");
  queue.submit(operation);
  queue.release(*operation);
  EXPECT_EQ(queue.next_name("allreduce"), "allreduce.unnamed.2");
  const auto join = make_join();
  queue.join(join);
  queue.release(*join);
  EXPECT_EQ(queue.next_name("allreduce"), "allreduce.unnamed.0");
}

TEST(TensorQueueTest, Prefixes_NeverRepeat) {
  TensorQueue queue("world");
  std::set<std::string> prefixes;
  for (int join = 0; join < 3; ++join) {
    EXPECT_TRUE(prefixes.insert(queue.next_prefix("optimizer")).second);
    EXPECT_TRUE(prefixes.insert(queue.next_prefix("optimizer")).second);
    const auto joining = make_join();
    queue.join(joining);
    queue.release(*joining);
  }
}

TEST(TensorQueueTest, Leaving_StaysSet) {
  TensorQueue queue("world");
  queue.leave(Leaving::ByException);
  EXPECT_EQ(queue.take().leaving, Leaving::ByException);
  EXPECT_EQ(queue.take().leaving, Leaving::ByException);
}

TEST(TensorQueueTest, Stop_RejectsSubmissionsWithItsReason) {
  TensorQueue queue("world");
  queue.submit(make("before"));
  queue.stop("Kolo has been shut down.");
  for (const auto& call : {std::function<void()>([&] { queue.submit(make("a")); }),
                           std::function<void()>([&] { queue.join(make_join()); })}) {
    const std::string text = text_thrown_by<ShutdownError>(call);
    EXPECT_NE(text.find("on process set world: Kolo has been shut down."), std::string::npos)
        << text;
  }
  EXPECT_EQ(names_of(queue.take()), std::vector<std::string>{"before"});
}

TEST(TensorQueueTest, ManyThreads_LoseNothingAndKeepTheOrderOfEach) {
  constexpr int kThreads = 4;
  constexpr int kOperations = 500;
  TensorQueue queue("world");
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&queue, thread] {
      for (int i = 0; i < kOperations; ++i) {
        const auto operation = make(std::to_string(thread) + "/" + std::to_string(i));
        queue.submit(operation);
        if (i % 3 == 0) queue.await(operation->use);
      }
    });
  }
  std::vector<int> next(kThreads);
  std::set<std::uint64_t> uses;
  std::size_t awaited = 0;
  while (uses.size() < std::size_t{kThreads} * kOperations) {
    const TensorQueue::Taken taken = queue.take();
    awaited += taken.awaited.size();
    for (const auto& operation : taken.operations) {
      const std::string& name = operation->request.name;
      const std::size_t thread = static_cast<std::size_t>(name.front() - '0');
      ASSERT_EQ(name.substr(2), std::to_string(next[thread]++)) << name;
      ASSERT_TRUE(uses.insert(operation->use).second) << "a use counts once";
      queue.release(*operation);
    }
  }
  threads.clear();
  awaited += queue.take().awaited.size();
  EXPECT_EQ(awaited, std::size_t{kThreads} * ((kOperations + 2) / 3));
  EXPECT_EQ(queue.in_flight(), 0);
}

}  // namespace kolo::runtime::tensor_queue_test
