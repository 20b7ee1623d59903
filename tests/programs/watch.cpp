#include "programs/watch.hpp"

#include <utility>

namespace kolo::programs {
namespace {

constexpr int kMaxFailures = 8;  // further ones follow from the first

}  // namespace

Watch::Watch(const Program& program, std::ostream* trace)
    : program_(program), trace_(trace), places_(static_cast<std::size_t>(program.size)) {}

void Watch::note(int rank, int round, Activity activity, int operation) {
  Place& place = places_[static_cast<std::size_t>(rank)];
  place.round = round;
  place.activity = activity;
  place.operation = operation;
  if (trace_ == nullptr) return;
  const std::lock_guard lock(lock_);
  *trace_ << state(rank) << std::flush;
}

void Watch::fail(int rank, const std::string& text) {
  const std::lock_guard lock(lock_);
  if (++failure_count_ > kMaxFailures) return;
  failures_ += "  rank " + std::to_string(rank) + ": " + text + "\n";
  if (trace_ != nullptr) *trace_ << "FAILED on rank " << rank << ": " << text << "\n" << std::flush;
}

std::string Watch::state(int rank) const {
  const Place& place = places_[static_cast<std::size_t>(rank)];
  std::string text = "  [rank " + std::to_string(rank) + "] round " + std::to_string(place.round);
  switch (place.activity) {
    case Activity::Starting: text += ": starts its Runtime"; break;
    case Activity::Submitting: text += ": submits "; break;
    case Activity::Waiting: text += ": waits for "; break;
    case Activity::BlockingCall: text += ": is in a blocking call"; break;
    case Activity::Ended: text += ": has ended"; break;
  }
  const int operation = place.operation;
  if (operation >= 0) {
    text += describe(program_, program_.operations[static_cast<std::size_t>(operation)]);
  }
  return text + "\n";
}

std::string Watch::state() const {
  std::string text;
  for (int rank = 0; rank < program_.size; ++rank) text += state(rank);
  return text;
}

std::string Watch::failures() const {
  const std::lock_guard lock(lock_);
  return failures_;
}

Alarm::Alarm(std::chrono::seconds limit, std::function<void()> report)
    : thread_([this, limit, report = std::move(report)] {
        std::unique_lock lock(lock_);
        if (!ended_.wait_for(lock, limit, [this] { return is_ended_; })) report();
      }) {}

Alarm::~Alarm() {
  {
    const std::lock_guard lock(lock_);
    is_ended_ = true;
  }
  ended_.notify_one();
  thread_.join();
}

}  // namespace kolo::programs
