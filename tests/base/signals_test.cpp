// What signals do to a process that listens to them, each in a child of its own.
#include "base/signals.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <string>
#include <string_view>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

namespace kolo::test::signals_test {

using namespace std::chrono_literals;

/// The status of a child that runs `body`, as waitpid() gives it.
int status_of(const std::function<void()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    body();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

int signal_of(int status) { return WIFSIGNALED(status) ? WTERMSIG(status) : 0; }

template <class Condition>
void wait_until(Condition condition) {
  for (int i = 0; i < 5000 && !condition(); ++i) std::this_thread::sleep_for(1ms);
}

/// Tells the parent by its exit status that something was not so.
void require(bool condition) {
  if (!condition) ::_exit(9);
}

TEST(SignalsTest, TerminationIsAnsweredFirst) {
  int pipe_ends[2];
  ASSERT_EQ(::pipe(pipe_ends), 0);
  const int status = status_of([&] {
    const Signals signals({SIGTERM}, [&](std::string_view why) {
      [[maybe_unused]] const auto written = ::write(pipe_ends[1], why.data(), why.size());
    });
    ::kill(::getpid(), SIGTERM);
    std::this_thread::sleep_for(10s);
  });
  ::close(pipe_ends[1]);
  std::string said(100, '\0');
  said.resize(
      static_cast<std::size_t>(std::max<ssize_t>(::read(pipe_ends[0], said.data(), 100), 0)));
  ::close(pipe_ends[0]);
  EXPECT_EQ(signal_of(status), SIGTERM);
  EXPECT_EQ(said, "requested by SIGTERM");
}

TEST(SignalsTest, AnAnswerThatHangsDoesNotKeepASecondSignalFromEndingTheProcess) {
  EXPECT_EQ(signal_of(status_of([] {
              const Signals signals({SIGTERM}, [](std::string_view) {
                ::kill(::getpid(), SIGTERM);
                std::this_thread::sleep_for(10s);
              });
              ::kill(::getpid(), SIGTERM);
              std::this_thread::sleep_for(10s);
            })),
            SIGTERM);
}

TEST(SignalsTest, AllListenersAnswerAQuestionAndTheProcessGoesOn) {
  EXPECT_EQ(status_of([] {
              std::atomic<int> answers{0};
              const auto count = [&](std::string_view why) {
                answers += why == "requested by SIGUSR2";
              };
              const Signals first({SIGUSR2}, count);
              {
                const Signals second({SIGUSR2}, count);
                ::kill(::getpid(), SIGUSR2);
                wait_until([&] { return answers == 2; });
              }
              ::kill(::getpid(), SIGUSR2);
              wait_until([&] { return answers == 3; });
              std::this_thread::sleep_for(20ms);
              require(answers == 3);
            }),
            0);
}

TEST(SignalsTest, TheProgramsHandlersStay) {
  EXPECT_EQ(status_of([] {
              std::signal(SIGTERM, SIG_IGN);
              const Signals signals({SIGTERM}, [](std::string_view) { ::_exit(8); });
              ::kill(::getpid(), SIGTERM);
              std::this_thread::sleep_for(50ms);
            }),
            0);
}

TEST(SignalsTest, WithoutListenersSignalsDoWhatTheyDoByDefault) {
  EXPECT_EQ(signal_of(status_of([] {
              {
                const Signals signals({SIGTERM, SIGUSR1}, [](std::string_view) {});
                Signals::let_preempt();
              }
              ::kill(::getpid(), SIGUSR1);
              std::this_thread::sleep_for(10s);
            })),
            SIGUSR1);
}

TEST(SignalsTest, TheFirstSignalPreemptsTheSecondEnds) {
  for (const int first : {SIGTERM, SIGUSR1}) {
    for (const int second : {SIGTERM, SIGUSR1}) {
      EXPECT_EQ(signal_of(status_of([&] {
                  const Signals signals({SIGTERM, SIGUSR1}, [](std::string_view) {});
                  Signals::let_preempt();
                  require(!Signals::is_preempted());
                  ::kill(::getpid(), first);
                  wait_until([] { return Signals::is_preempted(); });
                  ::kill(::getpid(), first);  // by the launcher, at the same time
                  std::this_thread::sleep_for(1100ms);
                  require(Signals::is_preempted());
                  ::kill(::getpid(), second);
                  std::this_thread::sleep_for(10s);
                })),
                second);
    }
  }
}

TEST(SignalsTest, ForkedChildrenEndAsWithoutKolo) {
  EXPECT_EQ(status_of([] {
              const Signals signals({SIGTERM, SIGUSR1, SIGUSR2},
                                    [](std::string_view) { ::_exit(8); });
              for (const int signal : {SIGTERM, SIGUSR1, SIGUSR2}) {
                const int expected = signal == SIGUSR2 ? 0 : signal;
                require(signal_of(status_of([&] {
                          ::kill(::getpid(), signal);
                          std::this_thread::sleep_for(50ms);
                        })) == expected);
              }
            }),
            0);
}

}  // namespace kolo::test::signals_test

namespace kolo::test::signals_test {

TEST(SignalsTest, WhatIsPreemptedKeepsItsForkedChildren) {
  EXPECT_EQ(status_of([] {
              const Signals signals({SIGTERM, SIGUSR1}, [](std::string_view) {});
              for (const int signal : {SIGTERM, SIGUSR1}) {
                const pid_t child = ::fork();
                if (child == 0) {
                  std::this_thread::sleep_for(10s);
                  ::_exit(0);
                }
                Signals::let_preempt();  // which the child sees, too
                int status = status_of([&] { ::kill(child, signal); });  // as a launcher does
                std::this_thread::sleep_for(50ms);
                require(::waitpid(child, &status, WNOHANG) == 0);
                ::kill(child, signal);  // as a DataLoader ends its workers
                ::waitpid(child, &status, 0);
                require(signal_of(status) == signal);
              }
            }),
            0);
}

TEST(SignalsTest, ASignalAfterARequestIsTheFirst) {
  EXPECT_EQ(signal_of(status_of([] {
              const Signals signals({SIGTERM, SIGUSR1}, [](std::string_view) {});
              Signals::let_preempt();
              Signals::request_preemption();
              ::kill(::getpid(), SIGTERM);
              std::this_thread::sleep_for(1100ms);
              ::kill(::getpid(), SIGUSR1);
              std::this_thread::sleep_for(10s);
            })),
            SIGUSR1);
}

}  // namespace kolo::test::signals_test

/// Not inlined, and with a name that the dynamic linker knows.
extern "C" [[gnu::noinline, gnu::visibility("default")]] void kolo_test_wait_in_here(
    const std::atomic<bool>* is_over) {
  while (!*is_over) {
  }
}

namespace kolo::test::signals_test {

TEST(SignalsTest, TheStackOfTheMainThreadSaysWhereItIs) {
  const int status = status_of([] {
    const Signals signals({SIGUSR2}, [](std::string_view) {});
    require(Signals::main_thread_stack().empty());  // asked by itself
    std::atomic<bool> is_over{false};
    std::vector<std::string> stack;
    std::thread asking([&] {
      std::this_thread::sleep_for(20ms);
      stack = Signals::main_thread_stack();
      is_over = true;
    });
    kolo_test_wait_in_here(&is_over);
    asking.join();
    require(!stack.empty());
    const auto is_here = [](const std::string& name) {
      return name.find("kolo_test_wait_in_here") != std::string::npos ||
             name.find("base_test+0x") != std::string::npos;  // linked without -rdynamic
    };
    require(std::ranges::any_of(stack, is_here));  // sanitizers have frames of their own
  });
  EXPECT_EQ(status, 0);
}

}  // namespace kolo::test::signals_test
