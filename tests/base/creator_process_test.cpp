#include "base/creator_process.hpp"

#include <functional>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

namespace kolo::creator_process_test {

/// Whether `holds` in a forked child.
bool in_child(const std::function<bool()>& holds) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(holds() ? 1 : 0);
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 1;
}

TEST(CreatorProcessTest, Creator_IsTheProcessThatMadeTheObject) {
  const CreatorProcess creator;
  EXPECT_TRUE(creator.is_current());
  EXPECT_TRUE(in_child([&] { return !creator.is_current(); }));
  EXPECT_TRUE(creator.is_current()) << "after a fork as before";
}

TEST(CreatorProcessTest, ObjectOfTheChild_HasTheChildAsCreator) {
  const CreatorProcess creator;
  EXPECT_TRUE(in_child([&] {
    const CreatorProcess own;
    return own.is_current() && !creator.is_current() && in_child([&] { return !own.is_current(); });
  }));
}

TEST(CreatorProcessTest, Copy_HasTheCreatorOfItsOriginal) {
  const CreatorProcess creator;
  EXPECT_TRUE(in_child([&] {
    const CreatorProcess copy = creator;
    return !copy.is_current();
  }));
}

}  // namespace kolo::creator_process_test
