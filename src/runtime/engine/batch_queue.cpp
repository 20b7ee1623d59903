#include "runtime/engine/batch_queue.hpp"

#include <utility>

#include "base/deadline.hpp"
#include "base/usual_floats.hpp"

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
  if (batches_.empty()) return {};
  Batch& batch = batches_.front();
  Step step;
  Progress progress = Progress::Done;
  const UsualFloats floats;
  try {
    for (int chunks = 0; chunks < kChunksPerStep && polls > 0;) {
      progress = batch.task.poll();
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
  step.operations = std::move(batch.operations);
  batches_.pop_front();
  ++ended_;
  return step;
}

bool BatchQueue::is_overdue(Clock::time_point now, std::chrono::nanoseconds grace) {
  if (batches_.empty() || now <= batches_.front().overdue_at) return false;
  batches_.front().overdue_at = later(now, grace);
  return true;
}

std::deque<BatchQueue::Batch> BatchQueue::take_all() { return std::exchange(batches_, {}); }

}  // namespace kolo::runtime
