// How a forked child may use its copies of the parent's objects.
#include <functional>
#include <memory>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "comm/self_world.hpp"
#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "runtime/runtimes.hpp"
#include "runtime/values.hpp"

namespace kolo::test::fork_test {

/// Whether `holds` is true in a forked child, with a time limit.
bool holds_in_child(const std::function<bool()>& holds) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(30);  // ends a child that waits for a thread it does not have
    ::_exit(holds() ? 1 : 0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 1;
}

std::unique_ptr<Runtime> start() {
  auto runtime = std::make_unique<Runtime>(
      InitOptions{.config = test_config(), .world = std::make_shared<comm::SelfWorld>()});
  Runtime::set_thread_current(runtime.get());
  return runtime;
}

TEST(ForkTest, ShutdownInAChild_HasNoEffect) {
  const std::unique_ptr<Runtime> runtime = start();
  EXPECT_TRUE(holds_in_child([&] {
    runtime->shutdown();
    return runtime->size() == 1;
  }));
  expect_sum_works(*runtime, "after");
}

TEST(ForkTest, OperationInAChild_IsRejected) {
  const std::unique_ptr<Runtime> runtime = start();
  Tensor tensor(3);
  EXPECT_TRUE(holds_in_child([&] {
    const std::string text = text_thrown_by<InvalidArgument>(
        [&] { allreduce(tensor.view(), tensor.view(), {.name = "x"}); });
    return text.find("forked child") != std::string::npos;
  }));
  expect_sum_works(*runtime, "x");
}

/// A thread of the parent may hold a lock of the lane at the fork, and does not exist in the child.
TEST(ForkTest, MetricsInAChild_AreRejected) {
  const std::unique_ptr<Runtime> runtime = start();
  EXPECT_TRUE(holds_in_child([&] {
    const std::string text = text_thrown_by<InvalidArgument>([&] { runtime->world().metrics(); });
    return text.find("forked child") != std::string::npos;
  }));
}

}  // namespace kolo::test::fork_test
