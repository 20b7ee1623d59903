#include "base/creator_process.hpp"

#include <atomic>
#include <pthread.h>

namespace kolo {
namespace {

/// Number of forks between the first process that created a CreatorProcess and this one. Reading
/// it is a load; getpid() would cost a system call.
std::atomic<std::uint64_t> forks{0};

void count_fork() { forks.fetch_add(1, std::memory_order_relaxed); }

std::uint64_t count_forks_from_now_on() {
  [[maybe_unused]] static const int is_counting = ::pthread_atfork(nullptr, nullptr, count_fork);
  return forks.load(std::memory_order_relaxed);
}

}  // namespace

CreatorProcess::CreatorProcess() : forks_(count_forks_from_now_on()) {}

bool CreatorProcess::is_current() const { return forks_ == forks.load(std::memory_order_relaxed); }

}  // namespace kolo
