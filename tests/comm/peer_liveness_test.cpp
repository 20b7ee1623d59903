#include "comm/peer_liveness.hpp"

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "comm/file_descriptor.hpp"
#include "support/system/refuse_pidfd.hpp"

namespace kolo::comm::peer_liveness_test {

using kolo::test::refuse_pidfd;

/// A child process that does nothing until it is killed.
class Child {
 public:
  Child() : pid_(::fork()) {
    if (pid_ == 0) {
      for (;;) ::pause();
    }
  }
  Child(const Child&) = delete;  // a process is reaped once
  Child& operator=(const Child&) = delete;
  ~Child() {
    ::kill(pid_, SIGKILL);
    if (!is_reaped_) ::waitpid(pid_, nullptr, 0);
  }

  int pid() const { return pid_; }
  void send(int signal) const { ::kill(pid_, signal); }
  void reap() {
    ::waitpid(pid_, nullptr, 0);
    is_reaped_ = true;
  }

 private:
  pid_t pid_;
  bool is_reaped_ = false;
};

/// The dead peers, once there are at least `count`.
std::vector<int> wait_for_deaths(PeerLiveness& liveness, std::size_t count) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (liveness.dead().size() < count && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
  }
  return liveness.dead();
}

TEST(PeerLivenessTest, EndedProcesses_AreNamed) {
  Child a;
  Child b;
  Child c;
  PeerLiveness liveness({{4, a.pid()}, {7, b.pid()}, {9, c.pid()}});
  EXPECT_TRUE(liveness.dead().empty());
  b.send(SIGKILL);
  EXPECT_EQ(wait_for_deaths(liveness, 1), std::vector<int>{7}) << "dead, though not yet reaped";
  a.send(SIGTERM);
  EXPECT_EQ(wait_for_deaths(liveness, 2), (std::vector<int>{7, 4}));
  EXPECT_EQ(liveness.dead(), (std::vector<int>{7, 4})) << "each is named once, and from then on";
}

TEST(PeerLivenessTest, StoppedProcess_IsAlive) {
  Child child;
  PeerLiveness liveness({{1, child.pid()}});
  child.send(SIGSTOP);
  ::waitpid(child.pid(), nullptr, WUNTRACED);
  EXPECT_TRUE(liveness.dead().empty());
  child.send(SIGKILL);
  EXPECT_EQ(wait_for_deaths(liveness, 1), std::vector<int>{1});
}

TEST(PeerLivenessTest, ProcessEndedBefore_IsDead) {
  Child gone;
  const int pid = gone.pid();
  gone.send(SIGKILL);
  gone.reap();
  Child alive;
  PeerLiveness liveness({{2, pid}, {3, alive.pid()}});
  EXPECT_EQ(liveness.dead(), std::vector<int>{2});
}

/// Runs in its own process, since pidfd_open cannot be enabled again.
void find_dead_without_pidfd(int error) {
  refuse_pidfd(error);
  Child gone;
  gone.send(SIGKILL);
  gone.reap();
  Child stopped;
  stopped.send(SIGSTOP);
  ::waitpid(stopped.pid(), nullptr, WUNTRACED);
  Child killed;
  PeerLiveness liveness({{2, gone.pid()}, {3, stopped.pid()}, {5, killed.pid()}});
  if (liveness.dead() != std::vector<int>{2}) std::exit(1);
  killed.send(SIGKILL);  // but not reaped
  if (wait_for_deaths(liveness, 2) != std::vector<int>{2, 5}) std::exit(2);
  stopped.send(SIGKILL);
  stopped.reap();
  if (wait_for_deaths(liveness, 3) != std::vector<int>{2, 5, 3}) std::exit(3);
  std::exit(0);
}

TEST(PeerLivenessTest, OldKernelsAndContainers_HaveProcInsteadOfPidfd) {
  for (const int error : {ENOSYS, EPERM}) {
    EXPECT_EXIT(find_dead_without_pidfd(error), testing::ExitedWithCode(0), "");
  }
}

TEST(PeerLivenessTest, NoPeers_NobodyIsDead) {
  PeerLiveness liveness({});
  EXPECT_TRUE(liveness.dead().empty());
}

bool is_open(int fd) { return ::lseek(fd, 0, SEEK_CUR) != -1 || errno != EBADF; }

TEST(FileDescriptorTest, LastOwner_ClosesOnce) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  {
    FileDescriptor first(ends[0]);
    FileDescriptor second(ends[1]);
    FileDescriptor moved(std::move(first));
    EXPECT_FALSE(first.is_open());
    EXPECT_EQ(moved.get(), ends[0]);
    moved = std::move(second);  // closes its previous descriptor
    EXPECT_FALSE(is_open(ends[0]));
    EXPECT_TRUE(is_open(ends[1]));
    FileDescriptor& self = moved;
    moved = std::move(self);
    EXPECT_TRUE(is_open(ends[1]));
  }
  EXPECT_FALSE(is_open(ends[1]));
  EXPECT_FALSE(FileDescriptor().is_open());
}

}  // namespace kolo::comm::peer_liveness_test
