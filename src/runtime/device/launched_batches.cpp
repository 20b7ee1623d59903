#include "runtime/device/launched_batches.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

namespace kolo::runtime {
namespace {

constexpr auto kShortestPause = std::chrono::microseconds(50);
constexpr auto kLongestPause = std::chrono::milliseconds(1);

/// What a query of the GPU has found.
struct QueryResult {
  std::optional<double> seconds;  // that the batch took, if it has ended
  std::exception_ptr error;
};

QueryResult query(comm::Gpu& gpu, const LaunchedBatches::Batch& batch) {
  try {
    if (!gpu.has_passed(batch.done.get())) return {};
    return {gpu.seconds_between(batch.began.get(), batch.done.get()), nullptr};
  } catch (...) {
    return {std::nullopt, std::current_exception()};
  }
}

}  // namespace

void LaunchedBatches::add(comm::Gpu& gpu, Batch batch) {
  {
    const std::lock_guard lock(lock_);
    batches_.push_back(std::move(batch));
  }
  if (!thread_.joinable()) thread_ = std::thread([this, &gpu] { release_ended(gpu); });
  changed_.notify_one();
}

bool LaunchedBatches::empty() {
  const std::lock_guard lock(lock_);
  if (error_) std::rethrow_exception(error_);
  return batches_.empty();
}

std::string LaunchedBatches::overdue(Operation::Clock::time_point now) {
  const std::lock_guard lock(lock_);
  if (batches_.empty() || now < batches_.front().give_up_at) return {};
  return describe(batches_.front().operations.front()->request);
}

double LaunchedBatches::seconds() {
  const std::lock_guard lock(lock_);
  return seconds_;
}

void LaunchedBatches::end() {
  stop();
  if (thread_.joinable()) thread_.join();
}

void LaunchedBatches::abandon() {
  stop();
  if (thread_.joinable()) thread_.detach();
}

void LaunchedBatches::stop() {
  {
    const std::lock_guard lock(lock_);
    is_stopping_ = true;
  }
  changed_.notify_one();
}

void LaunchedBatches::release_ended(comm::Gpu& gpu) {
  std::chrono::microseconds pause = kShortestPause;
  std::unique_lock lock(lock_);
  while (true) {
    if (is_stopping_) return;
    if (batches_.empty()) {
      changed_.wait(lock);
      continue;
    }
    Batch& first = batches_.front();  // deques do not move their elements
    lock.unlock();
    const QueryResult found = query(gpu, first);
    lock.lock();
    if (found.error) {
      error_ = found.error;
      return;
    }
    if (!found.seconds) {
      changed_.wait_for(lock, pause, [&] { return is_stopping_; });
      pause = std::min<std::chrono::microseconds>(2 * pause, kLongestPause);
      continue;
    }
    pause = kShortestPause;
    seconds_ += *found.seconds;
    std::optional<Batch> ended = std::move(batches_.front());
    batches_.pop_front();
    lock.unlock();
    ended.reset();  // without the lock: owners may run deleters of the program
    lock.lock();
  }
}

}  // namespace kolo::runtime
