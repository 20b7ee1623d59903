// A program that fails on one rank: victim <scenario>. The driver, failure_test.py, sets the time,
// starts it under mpirun and checks how the other ranks react.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <sys/resource.h>
#include <thread>
#include <vector>

#include "comm/make_world.hpp"
#include "failure/record.hpp"
#include "failure/scenario_steps.hpp"
#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "kolo/shared_buffer.hpp"
#include "support/system/refuse_pidfd.hpp"

namespace {

using namespace std::chrono_literals;
using namespace kolo::test::scenarios;

// --- deaths ---

void idle() {
  const kolo::Runtime runtime;
  warm_up();
  if (is_victim()) die();
  std::this_thread::sleep_for(500ms);
  reduce("x");
}

void negotiating() {
  const kolo::Runtime runtime;
  warm_up();
  die_later();
  for (int step = 0;; ++step) reduce("new " + std::to_string(step));
}

/// The other ranks have submitted theirs, and have had time to post headers.
void others_posted() {
  const kolo::Runtime runtime;
  warm_up();
  if (is_victim()) {
    for (int rank = 0; rank < runtime.size(); ++rank) {
      if (rank != victim) wait_for_stamp("submitted." + std::to_string(rank));
    }
    std::this_thread::sleep_for(100ms);
    die();
  }
  std::vector<float> values(100, 1.0f);
  kolo::Handle handle = kolo::allreduce_async(view_of(values), view_of(values), {.name = "x"});
  kolo::test::stamp(folder, "submitted." + std::to_string(own_rank()));
  handle.wait();
}

/// The victim has posted its header, the others have not. They wait for its .status: when it stamps
/// its death it is still alive, and would answer.
void posted() {
  const kolo::Runtime runtime;
  warm_up();
  std::vector<float> values(100);
  if (is_victim()) {
    const kolo::Handle handle =
        kolo::allreduce_async(view_of(values), view_of(values), {.name = "x"});
    std::this_thread::sleep_for(100ms);
    die();
  }
  wait_for_stamp(std::to_string(victim) + ".status");
  reduce("x");
}

void busy() {
  const kolo::Runtime runtime;
  warm_up();
  die_later();
  for (;;) reduce("x");
}

/// Takes tens of milliseconds, so that most deaths fall into the middle of it.
void mid_chunk() {
  const kolo::Runtime runtime;
  warm_up();
  die_later();
  for (;;) reduce("large", std::size_t{16} << 20);
}

void sharing_memory() {
  const kolo::Runtime runtime;
  warm_up();
  die_later();
  for (;;) const kolo::SharedBuffer buffer(std::size_t{1} << 20, {.name = "memory"});
}

/// MPI has started, the Runtime has not. For deaths inside MPI_Init see killed_in_start_test.py.
void mpi_started() {
  const auto config = kolo::Config::from_environment();
  const std::shared_ptr<kolo::comm::World> world = kolo::comm::make_world(config);
  if (is_victim()) die();
  const kolo::Runtime runtime({.config = config, .world = world});
  reduce("x");
}

/// Or it has shut down, and the others wait for it before they finalise MPI. It waits until all
/// have warmed up: to ranks that have not, an earlier death is a loss.
void shutting_down() {
  kolo::Runtime runtime;
  warm_up();
  kolo::test::stamp(folder, "warm." + std::to_string(own_rank()));
  for (int rank = 0; is_victim() && rank < runtime.size(); ++rank) {
    wait_for_stamp("warm." + std::to_string(rank));
  }
  die_later();
  runtime.shutdown();
  if (is_victim()) std::this_thread::sleep_for(1h);
  wait_for_stamp("death");  // perhaps after it has left, see left()
  std::this_thread::sleep_for(100ms);
}

/// It has left normally and dies before the others finalise MPI, where they would wait for it.
void left() {
  kolo::Runtime runtime;
  warm_up();
  runtime.shutdown();
  if (is_victim()) die();
  wait_for_stamp("death");
  std::this_thread::sleep_for(100ms);
}

// --- other failures ---

void throws() {
  const kolo::Runtime runtime;
  warm_up();
  if (is_victim()) throw std::runtime_error("the disk of node 7 is full");
  reduce("x");
}

void stops() {
  const kolo::Runtime runtime;
  warm_up();
  if (is_victim()) {
    kolo::test::stamp(folder, "death");
    ::raise(SIGSTOP);
  }
  reduce("x");
}

/// As `stops`, but before any rank waits for it.
void vanishes() {
  const kolo::Runtime runtime;
  warm_up();
  if (is_victim()) {
    kolo::test::stamp(folder, "death");
    ::raise(SIGSTOP);
  }
  std::this_thread::sleep_for(3s);
  reduce("x");
}

/// All ranks are idle for a long time.
void rests() {
  const kolo::Runtime runtime;
  warm_up();
  std::this_thread::sleep_for(3s);
  reduce("x");
}

/// Announces when it is about to sleep.
void sleeps() {
  const kolo::Runtime runtime;
  warm_up();
  kolo::test::stamp(folder, "warm." + std::to_string(own_rank()));
  std::this_thread::sleep_for(1h);
}

void diverges() {
  const kolo::Runtime runtime;
  for (int step = 0; step < 100; ++step) {
    std::vector<float> values(12, 1.0f);
    kolo::TensorView view = view_of(values);
    view.shape = {3, 4};
    if (step == 50 && is_victim()) view.shape = {4, 3};
    if (step == 50) kolo::test::stamp(folder, "death");
    kolo::allreduce(view, view, {.name = "x"});
  }
}

void falls_silent() {
  const kolo::Runtime runtime;
  warm_up();
  if (is_victim()) {
    kolo::test::stamp(folder, "death");
    std::this_thread::sleep_for(3s);
  }
  reduce("x");
}

// --- costs ---

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

void expect_low_cpu_use(const char* what, double limit, const std::function<void()>& wait) {
  const double before = cpu_seconds();
  wait();
  const double used = cpu_seconds() - before;
  std::printf("rank %d: %s used %.3f s of CPU, at most %.3f s are allowed\n", own_rank(), what,
              used, limit);
  if (used > limit) throw std::runtime_error(std::string(what) + " uses too much CPU");
}

/// Measures 5 s instead of 10 s, with half of the cost allowed for these.
void costs() {
  const kolo::Runtime runtime;
  warm_up();
  expect_low_cpu_use("being idle", 0.025, [] { std::this_thread::sleep_for(5s); });
  reduce("x");
  if (is_victim()) std::this_thread::sleep_for(5s);
  expect_low_cpu_use("waiting for a late rank", 0.15, [] { reduce("x"); });
}

const std::map<std::string, void (*)()> scenarios{
    {"idle", idle},
    {"negotiating", negotiating},
    {"others_posted", others_posted},
    {"posted", posted},
    {"busy", busy},
    {"mid_chunk", mid_chunk},
    {"sharing_memory", sharing_memory},
    {"mpi_started", mpi_started},
    {"shutting_down", shutting_down},
    {"left", left},
    {"throws", throws},
    {"stops", stops},
    {"vanishes", vanishes},
    {"rests", rests},
    {"sleeps", sleeps},
    {"diverges", diverges},
    {"falls_silent", falls_silent},
    {"costs", costs},
};

}  // namespace

int main(int argc, char** argv) {
  const auto scenario = argc == 2 ? scenarios.find(argv[1]) : scenarios.end();
  if (scenario == scenarios.end()) {
    std::fputs("victim <scenario>\n", stderr);
    return 2;
  }
  if (std::getenv("KOLO_TEST_WITHOUT_PIDFD") != nullptr) kolo::test::refuse_pidfd(ENOSYS);
  if (std::getenv("KOLO_TEST_FOLDER") != nullptr) kolo::test::record_in(folder, own_rank());
  try {
    scenario->second();
  } catch (const kolo::Error& error) {
    std::fprintf(stderr, "caught: %s\n", error.what());
    return 1;
  }
  return 0;
}
