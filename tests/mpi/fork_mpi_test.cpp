// A rank that forks: its child may destroy its copy of the Runtime.
#include <memory>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "kolo/runtime.hpp"
#include "runtime/runtimes.hpp"
#include "runtime/values.hpp"

namespace kolo::test::fork_mpi_test {

TEST(ForkOverMpiTest, AChildMayDestroyItsCopyOfARuntime) {
  auto runtime = std::make_unique<Runtime>(InitOptions{.config = test_config()});
  Runtime::set_thread_current(runtime.get());
  expect_sum_works(*runtime, "before");
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(30);  // ends a child that waits for its parent's resources
    runtime.reset();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_NO_THROW(expect_sum_works(*runtime, "after"));
}

}  // namespace kolo::test::fork_mpi_test
