#include "kolo/task.hpp"

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace kolo::task_test {

/// An awaitable that the test makes ready, and that counts its polls.
struct Gate {
  bool is_open = false;
  int looks = 0;
  bool ready() {
    ++looks;
    return is_open;
  }
};

struct Broken {
  bool ready() { throw std::runtime_error("the wire is cut"); }
};

Task wait_for(Gate& gate, std::string& log, std::string text) {
  co_await gate;
  log += text;
}

TEST(TaskTest, BeforeTheFirstPoll_NothingRuns) {
  Gate gate{.is_open = true};
  std::string log;
  Task task = wait_for(gate, log, "a");
  EXPECT_EQ(log, "");
  EXPECT_EQ(task.poll(), Progress::Done);
  EXPECT_EQ(log, "a");
}

TEST(TaskTest, ClosedGate_SuspendsTheTask) {
  Gate gate;
  std::string log;
  Task task = wait_for(gate, log, "a");
  EXPECT_EQ(task.poll(), Progress::Advanced);  // as far as the gate
  EXPECT_EQ(task.poll(), Progress::Waiting);
  EXPECT_EQ(task.poll(), Progress::Waiting);
  EXPECT_EQ(log, "");
  gate.is_open = true;
  EXPECT_EQ(task.poll(), Progress::Done);
  EXPECT_EQ(log, "a");
  EXPECT_EQ(gate.looks, 4);  // once per poll, and never again after it was open
}

TEST(TaskTest, PollAfterTheEnd_StaysDone) {
  Gate gate{.is_open = true};
  std::string log;
  Task task = wait_for(gate, log, "a");
  EXPECT_EQ(task.poll(), Progress::Done);
  EXPECT_EQ(task.poll(), Progress::Done);
  EXPECT_EQ(log, "a");
}

Task middle(Gate& first, Gate& second, std::string& log) {
  co_await wait_for(first, log, "1");
  Task named = wait_for(second, log, "2");
  co_await named;
  log += "m";
}

Task outer(Gate& first, Gate& second, std::string& log) {
  log += "(";
  co_await middle(first, second, log);
  log += ")";
}

TEST(TaskTest, NestedTasks_RunInOrder) {
  Gate first;
  Gate second{.is_open = true};
  std::string log;
  Task task = outer(first, second, log);
  while (task.poll() == Progress::Advanced) {
  }
  EXPECT_EQ(log, "(");
  first.is_open = true;
  while (task.poll() == Progress::Advanced) {
  }
  EXPECT_EQ(task.poll(), Progress::Done);
  EXPECT_EQ(log, "(12m)");
}

Task fail_behind(Gate& gate, std::string text) {
  co_await gate;
  throw std::runtime_error(text);
}

Task catch_inner(Gate& gate, std::string& log) {
  try {
    co_await fail_behind(gate, "inner");
  } catch (const std::runtime_error& error) {
    log += error.what();
  }
}

Task pass_on(Gate& gate) { co_await fail_behind(gate, "deep down"); }

std::string error_of(Task& task) {
  try {
    while (task.poll() != Progress::Done) {
    }
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "no error";
}

TEST(TaskTest, ExceptionAfterAWait_ReachesThePoll) {
  Gate gate;
  Task task = pass_on(gate);
  while (task.poll() == Progress::Advanced) {
  }
  gate.is_open = true;
  EXPECT_EQ(error_of(task), "deep down");
}

TEST(TaskTest, AfterAnException_EveryPollThrowsAgain) {
  Gate gate{.is_open = true};
  Task direct = fail_behind(gate, "at once");
  Task nested = pass_on(gate);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(error_of(direct), "at once");
    EXPECT_EQ(error_of(nested), "deep down");
  }
}

Task await_broken() { co_await Broken(); }

TEST(TaskTest, Awaitable_MayThrow) {
  Task task = await_broken();
  EXPECT_EQ(error_of(task), "the wire is cut");
}

TEST(TaskTest, AwaitingTask_MayCatch) {
  Gate gate{.is_open = true};
  std::string log;
  Task task = catch_inner(gate, log);
  EXPECT_EQ(error_of(task), "no error");
  EXPECT_EQ(log, "inner");
}

TEST(TaskTest, AwaitingTask_MayCatchAfterAWait) {
  Gate gate;
  std::string log;
  Task task = catch_inner(gate, log);
  while (task.poll() == Progress::Advanced) {
  }
  gate.is_open = true;
  EXPECT_EQ(error_of(task), "no error");
  EXPECT_EQ(log, "inner");
}

Task take_turns(std::string& log, char who, int times) {
  for (int i = 0; i < times; ++i) {
    log += who;
    co_await yield();
  }
}

TEST(TaskTest, Yield_SuspendsOnce) {
  std::string log;
  Task a = take_turns(log, 'a', 3);
  Task b = take_turns(log, 'b', 3);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(a.poll(), Progress::Advanced);
    EXPECT_EQ(b.poll(), Progress::Advanced);
  }
  EXPECT_EQ(a.poll(), Progress::Done);
  EXPECT_EQ(b.poll(), Progress::Done);
  EXPECT_EQ(log, "ababab");
}

Task nested_turns(std::string& log, char who) {
  co_await take_turns(log, who, 2);
  co_await take_turns(log, who, 1);
}

TEST(TaskTest, Yield_InANestedTask_SuspendsBoth) {
  std::string log;
  Task a = nested_turns(log, 'a');
  Task b = nested_turns(log, 'b');
  while (a.poll() != Progress::Done) static_cast<void>(b.poll());
  while (b.poll() != Progress::Done) {
  }
  EXPECT_EQ(log, "ababab");
}

/// Records its destruction.
struct DestructionLogger {
  std::string* log;
  std::string text;
  DestructionLogger(std::string& l, std::string t) : log(&l), text(std::move(t)) {}
  DestructionLogger(const DestructionLogger&) = delete;
  DestructionLogger& operator=(const DestructionLogger&) = delete;
  ~DestructionLogger() { *log += text; }
};

Task hold(Gate& gate, std::string& log) {
  const DestructionLogger logger(log, "inner ");
  co_await gate;
}

Task hold_outer(Gate& gate, std::string& log) {
  const DestructionLogger logger(log, "outer ");
  co_await hold(gate, log);
}

TEST(TaskTest, DestroyedWhileWaiting_DestroysLocalsInReverseOrder) {
  Gate gate;
  std::string log;
  {
    Task task = hold_outer(gate, log);
    while (task.poll() == Progress::Advanced) {
    }
    EXPECT_EQ(log, "");
  }
  EXPECT_EQ(log, "inner outer ");
}

TEST(TaskTest, DestroyedBeforeTheFirstPoll_HasRunNothing) {
  Gate gate;
  std::string log;
  {
    const Task task = hold_outer(gate, log);
  }
  EXPECT_EQ(log, "");
  EXPECT_EQ(gate.looks, 0);
}

TEST(TaskTest, MoveAssignment_DestroysThePreviousTask) {
  Gate gate;
  std::string log;
  Task task = hold(gate, log);
  static_cast<void>(task.poll());
  Gate open{.is_open = true};
  std::string other_log;
  task = hold(open, other_log);
  EXPECT_EQ(log, "inner ");
  EXPECT_EQ(task.poll(), Progress::Done);
}

TEST(TaskTest, MovedWhileWaiting_Continues) {
  Gate gate;
  std::string log;
  Task task = wait_for(gate, log, "a");
  static_cast<void>(task.poll());
  std::vector<Task> tasks;
  tasks.push_back(std::move(task));
  gate.is_open = true;
  EXPECT_EQ(tasks.front().poll(), Progress::Done);
  EXPECT_EQ(log, "a");
}

}  // namespace kolo::task_test
