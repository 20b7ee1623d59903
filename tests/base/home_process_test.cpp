#include "base/home_process.hpp"

#include <functional>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

namespace kolo::home_process_test {

/// Whether `holds` in a forked child.
bool in_child(const std::function<bool()>& holds) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(holds() ? 1 : 0);
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 1;
}

TEST(HomeProcessTest, Home_IsTheProcessThatMadeTheObject) {
  const HomeProcess home;
  EXPECT_TRUE(home.is_here());
  EXPECT_TRUE(in_child([&] { return !home.is_here(); }));
  EXPECT_TRUE(home.is_here()) << "after a fork as before";
}

TEST(HomeProcessTest, ObjectOfTheChild_IsAtHomeThere) {
  const HomeProcess home;
  EXPECT_TRUE(in_child([&] {
    const HomeProcess own;
    return own.is_here() && !home.is_here() && in_child([&] { return !own.is_here(); });
  }));
}

TEST(HomeProcessTest, Copy_HasTheHomeOfItsOriginal) {
  const HomeProcess home;
  EXPECT_TRUE(in_child([&] {
    const HomeProcess copy = home;
    return !copy.is_here();
  }));
}

}  // namespace kolo::home_process_test
