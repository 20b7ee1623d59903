// The end of a lane: orderly, or by the loss of a rank.
#include <chrono>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "base/deadline.hpp"
#include "base/intentional_leak.hpp"
#include "kolo/error.hpp"
#include "runtime/lane/backoff.hpp"
#include "runtime/lane/lane.hpp"

namespace kolo::runtime {
namespace {

/// For error texts; a join has no request.
std::string what_of(const Operation& operation) {
  return operation.role == OperationRole::Join ? "join" : describe(operation.request);
}

}  // namespace

// --- orderly ---

void Lane::end(const std::string& why, Leaving how) {
  require_outside_step("shutdown or removal");
  queue_.leave(how);
  Backoff backoff(Backoff::Duration{0});
  auto give_up_at = Clock::time_point::max();
  for (;;) {
    std::unique_lock lock(progress_mutex_);
    if (control_ == nullptr) break;  // another thread was faster
    const bool has_progressed = progress_step(1);
    const bool is_over = loss_ ? !executor_.has_stopped_batches() : control_->have_all_left();
    if (!is_over && Clock::now() > give_up_at) world_.mark_broken();
    if (is_over || Clock::now() > give_up_at) {
      release(why);
      break;
    }
    if (control_->has_left() && give_up_at == Clock::time_point::max()) {
      // Silence is not detected from here on.
      give_up_at = later(Clock::now(), data_.longest_silence_in_shutdown(messaging_ != nullptr));
    }
    lock.unlock();
    if (const bool has_served = serve_messages(); has_served || has_progressed) {
      backoff.reset();
    } else {
      std::this_thread::sleep_for(backoff.next_pause());
    }
  }
  const std::lock_guard lock(thread_lock_);
  thread_.reset();
}

void Lane::leave_when_closed() {
  if (control_->has_left() || loss_) return;
  if (!control_->coordinator().is_closed() || !executor_.is_idle()) return;
  control_->leave();
}

/// A thread that waits for an operation may be about to begin another step, and the program may
/// keep the lane by handles and sets for as long as it likes.
void Lane::release(const std::string& why) {
  queue_.stop(why);
  progress_step(1);  // ends operations submitted since the set was closed
  serve_messages();  // the last ones
  messaging_ = nullptr;
  at_end_ = measure();
  control_.reset();
  executor_.release();
  data_.release();
}

void Lane::complete(const std::shared_ptr<Operation>& operation, std::exception_ptr error) {
  if (operation->role == OperationRole::StandIn) return;  // no thread waits for it
  queue_.release(*operation);
  operation->error = std::move(error);
  operation->ended = Clock::now();
  {
    const std::lock_guard lock(waiters_.mutex);
    operation->is_done.store(true, std::memory_order_release);
  }
  waiters_.operation_is_done.notify_all();
}

// --- by a loss ---

void Lane::declare_lost(const ControlPlane::Loss& loss) {
  if (loss_) return;
  loss_ = loss;
  world_.mark_broken();
  control_->declare_lost(loss);
  executor_.abort("rank " + std::to_string(world_rank(loss.rank)) + " " + loss.how);
  const auto now = Clock::now();
  end_stopped_batches(now);
  carry_out(control_->decide(now));
}

/// MPI and GPUs may still read the memory of these batches, so it leaks intentionally.
bool Lane::end_stopped_batches(Clock::time_point now) {
  LostBatches::Batches drained = executor_.take_drained(now);
  for (BatchQueue::Batch& batch : drained) {
    for (const auto& operation : batch.operations) {
      complete(operation, loss_error(*operation, *loss_));
    }
    leak_intentionally(std::move(batch));
  }
  return !drained.empty();
}

/// A rank that knows of a loss may already have overwritten what an operation on buffers reads.
/// Null if no rank knew of a loss when the operation ended here.
std::exception_ptr Lane::find_late_loss(const Operation& operation) {
  if (!operation.request.is_on_buffers()) return nullptr;
  try {
    const std::optional<ControlPlane::Loss> loss = control_->published_loss();
    return loss ? loss_error(operation, *loss) : nullptr;
  } catch (const BackendError&) {  // what another rank has published is damaged
    return std::current_exception();
  }
}

void Lane::fail(const std::string& how) {
  const std::lock_guard lock(progress_mutex_);
  if (control_ != nullptr) declare_lost({rank(), "failed: " + how});
}

std::exception_ptr Lane::loss_error(const Operation& operation,
                                    const ControlPlane::Loss& loss) const {
  return std::make_exception_ptr(
      PeerLostError(what_of(operation) + " on process set " + data_.name + ": rank " +
                    std::to_string(world_rank(loss.rank)) + " " + loss.how));
}

std::optional<ControlPlane::Loss> Lane::loss() {
  // A function of the program may be held in another thread's step.
  const std::unique_lock lock(progress_mutex_, std::try_to_lock);
  return lock.owns_lock() ? loss_ : std::nullopt;
}

void Lane::declare_silent_rank_lost() {
  if (const auto loss = control_->find_silent()) declare_lost(*loss);
}

void Lane::publish_end(const std::string& how) {
  if (!creator_.is_current()) return;
  // Not during another thread's step, which uses the control plane. A step that takes longer than
  // this hangs in a function of the program; the other ranks then see that the process has ended.
  constexpr int kLongestStepMs = 500;
  std::unique_lock lock(progress_mutex_, std::defer_lock);
  const bool is_in_step = progress_mutex_.is_mine();
  for (int ms = 0; !is_in_step && ms < kLongestStepMs && !lock.try_lock(); ++ms) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if ((is_in_step || lock.owns_lock()) && control_ != nullptr)
    control_->publish_lost({rank(), how});
}

}  // namespace kolo::runtime
