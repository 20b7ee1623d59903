#include "support/mpi/watchdog.hpp"

#include <cstdio>
#include <utility>

#include <mpi.h>

namespace kolo::test {

Watchdog::Watchdog(std::string who, std::chrono::seconds limit)
    : who_(std::move(who)), limit_(limit), thread_([this] { loop(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard guard(lock_);
    is_stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void Watchdog::begin(const std::string& test) {
  {
    const std::lock_guard guard(lock_);
    test_ = test;
    place_ = "none";
    until_ = Clock::now() + limit_;
  }
  changed_.notify_one();
}

void Watchdog::end() {
  const std::lock_guard guard(lock_);
  until_ = Clock::time_point::max();
}

void Watchdog::note(const std::string& place) {
  const std::lock_guard guard(lock_);
  place_ = place;
}

void Watchdog::loop() {
  std::unique_lock guard(lock_);
  while (!is_stopping_) {
    if (until_ == Clock::time_point::max()) {
      changed_.wait(guard);
      continue;
    }
    changed_.wait_until(guard, until_);
    if (is_stopping_ || Clock::now() < until_) continue;
    const std::string text = who_ + "watchdog: " + test_ + " has run for more than " +
                             std::to_string(limit_.count()) +
                             " s; last meeting with the other ranks: " + place_ + "\n";
    std::fputs(text.c_str(), stderr);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
}

}  // namespace kolo::test
