#include "runtime/engine/batch_queue.hpp"

#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/error.hpp"
#include "runtime/data/operation.hpp"

namespace kolo::runtime::batch_queue_test {

using namespace std::chrono_literals;
using Clock = BatchQueue::Clock;

/// The conditions that a test's batches await, and a log of their actions.
struct Script {
  bool may_finish = false;
  int polls = 0;
  int chunks = 0;
};

struct Permission {
  Script& script;

  bool ready() {
    ++script.polls;
    return script.may_finish;
  }
};

Task wait(Script& script) {
  Permission permission{script};
  co_await permission;
}

Task move_chunks(Script& script, int count) {
  for (; script.chunks < count; ++script.chunks) co_await yield();
}

Task await(BatchQueue::EndOfBatches end) { co_await end; }

template <class Error>
Task fail(Error error) {
  co_await yield();
  throw error;
}

std::shared_ptr<Operation> push(BatchQueue& queue, Task task,
                                Clock::time_point overdue_at = Clock::time_point::max()) {
  auto operation = std::make_shared<Operation>();
  queue.push({std::move(task), {operation}, overdue_at});
  return operation;
}

BatchQueue::Step advance_until_done(BatchQueue& queue) {
  for (;;) {
    BatchQueue::Step step = queue.advance(1);
    if (!step.operations.empty()) return step;
  }
}

TEST(BatchQueueTest, EmptyQueue_DoesNotProgress) {
  BatchQueue queue;
  EXPECT_TRUE(queue.empty());
  const BatchQueue::Step step = queue.advance(1);
  EXPECT_FALSE(step.has_progressed);
  EXPECT_TRUE(step.operations.empty());
}

TEST(BatchQueueTest, Batches_RunOneAfterAnother) {
  BatchQueue queue;
  Script first;
  Script second;
  const auto a = push(queue, wait(first));
  const auto b = push(queue, move_chunks(second, 1));
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(queue.advance(1).operations.empty());
  EXPECT_EQ(second.chunks, 0) << "only the first batch moves";
  first.may_finish = true;
  EXPECT_EQ(advance_until_done(queue).operations, std::vector{a});
  EXPECT_EQ(advance_until_done(queue).operations, std::vector{b});
  EXPECT_TRUE(queue.empty());
}

TEST(BatchQueueTest, WaitingBatch_IsPolledAsOftenAsAsked) {
  BatchQueue queue;
  Script script;
  push(queue, wait(script));
  queue.advance(1);  // starts the task, which polls once more
  script.polls = 0;
  EXPECT_FALSE(queue.advance(1).has_progressed);
  EXPECT_EQ(script.polls, 1);
  queue.advance(7);
  EXPECT_EQ(script.polls, 8);
}

TEST(BatchQueueTest, OneStep_MovesFewChunks) {
  BatchQueue queue;
  Script script;
  push(queue, move_chunks(script, 1'000));
  EXPECT_TRUE(queue.advance(1'000).has_progressed);
  EXPECT_GT(script.chunks, 0);
  EXPECT_LT(script.chunks, 100) << "other work is not delayed";
  advance_until_done(queue);
  EXPECT_EQ(script.chunks, 1'000);
}

TEST(BatchQueueTest, AgreedFailure_EndsItsBatchOnly) {
  BatchQueue queue;
  Script script;
  const auto a =
      push(queue, fail(AgreedFailure{{ErrorKind::InvalidArgument, "the root is absent"}}));
  const auto b = push(queue, move_chunks(script, 1));
  const BatchQueue::Step failed = advance_until_done(queue);
  EXPECT_EQ(failed.operations, std::vector{a});
  EXPECT_THROW(std::rethrow_exception(failed.error), InvalidArgument);
  const BatchQueue::Step next = advance_until_done(queue);
  EXPECT_EQ(next.operations, std::vector{b});
  EXPECT_EQ(next.error, nullptr);
}

TEST(BatchQueueTest, AnyOtherException_IsThrownAndTheBatchStays) {
  BatchQueue queue;
  const auto operation = push(queue, fail(std::runtime_error("this rank alone")));
  EXPECT_THROW(advance_until_done(queue), std::runtime_error);
  const std::deque<BatchQueue::Batch> left = queue.take_all();
  ASSERT_EQ(left.size(), 1u);
  EXPECT_EQ(left.front().operations, std::vector{operation});
  EXPECT_TRUE(queue.empty());
}

TEST(BatchQueueTest, OverdueBatch_IsReportedOncePerGrace) {
  BatchQueue queue;
  Script script;
  const Clock::time_point deadline = Clock::now();
  EXPECT_FALSE(queue.is_overdue(deadline + 1h, 1s)) << "nothing is queued";
  push(queue, wait(script), deadline);
  EXPECT_FALSE(queue.is_overdue(deadline, 1s));
  EXPECT_TRUE(queue.is_overdue(deadline + 1ms, 1s));
  EXPECT_FALSE(queue.is_overdue(deadline + 1001ms, 1s));
  EXPECT_TRUE(queue.is_overdue(deadline + 1002ms, 1s));

  BatchQueue without_deadline;
  push(without_deadline, wait(script));
  EXPECT_FALSE(without_deadline.is_overdue(deadline + 24h, 1s));
}

TEST(BatchQueueTest, Place_IsReachedOnceEverythingBeforeItHasEnded) {
  BatchQueue queue;
  BatchQueue other;
  Script script;
  push(queue, wait(script));
  const auto after = push(other, await(queue.end_of_all()));
  push(queue, move_chunks(script, 1));  // queued later: not awaited
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(other.advance(1).operations.empty());
  script.may_finish = true;
  advance_until_done(queue);
  EXPECT_EQ(advance_until_done(other).operations, std::vector{after});
}

}  // namespace kolo::runtime::batch_queue_test
