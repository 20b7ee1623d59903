#include "runtime/lane/batch_queue.hpp"

#include <utility>

#include "base/deadline.hpp"
#include "base/usual_floats.hpp"
#include "runtime/protocol/agreed_failure.hpp"

namespace kolo::runtime {
namespace {

// A progress step costs about as much as a chunk, and waits between chunks are short.
constexpr int kChunksPerStep = 16;

}  // namespace

void BatchQueue::push(Batch batch) {
  batches_.push_back(std::move(batch));
  ++begun_;
}

BatchQueue::Step BatchQueue::advance(int polls) {
  Step step;
  if (batches_.empty()) return step;
  Progress progress = Progress::Done;
  const UsualFloats floats;
  try {
    for (int chunks = 0; chunks < kChunksPerStep && polls > 0;) {
      progress = batches_.front().task.poll();
      if (progress == Progress::Done) break;
      if (progress == Progress::Advanced) ++chunks;
      if (progress == Progress::Waiting) --polls;
      step.has_progressed |= progress == Progress::Advanced;
    }
  } catch (const AgreedFailure& agreed) {
    progress = Progress::Done;
    step.error = to_exception(agreed.failure);
  }
  if (progress != Progress::Done) return step;
  step.has_progressed = true;
  step.operations = std::move(batches_.front().operations);
  batches_.pop_front();
  ++ended_;
  return step;
}

bool BatchQueue::is_overdue(Clock::time_point now, std::chrono::nanoseconds grace) {
  if (batches_.empty()) return false;
  Clock::time_point& deadline = batches_.front().deadline;
  if (deadline == Clock::time_point::max() || now <= later(deadline, grace)) return false;
  deadline = now;
  return true;
}

std::deque<BatchQueue::Batch> BatchQueue::take_all() { return std::exchange(batches_, {}); }

}  // namespace kolo::runtime
