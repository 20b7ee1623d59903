// How a lane ends: in good order, or by the loss of a rank.
#include <chrono>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "base/current_exception.hpp"
#include "base/graveyard.hpp"
#include "base/log.hpp"
#include "kolo/error.hpp"
#include "runtime/lane/lane.hpp"

namespace kolo::runtime {

/// Then no message is under way any more: leaving is the last that a rank says.
bool Lane::have_all_left() {
  for (int other = 0; other < size(); ++other) {
    if (!board_->has_left(other)) return false;
  }
  return true;
}

void Lane::declare_lost(const HeaderBoard::Loss& loss) {
  if (loss_) return;
  loss_ = loss;
  world_.mark_broken();
  try {
    board_->publish_lost(loss);
  } catch (...) {  // by messages, to a rank that cannot be reached either
    KOLO_LOG(Warn) << "process set " << name_
                   << ": cannot tell all ranks: " << text_of_current_exception();
  }
  watch_->report(loss);
  coordinator_.on_lost(loss.rank, loss.how);
  if (device_runner_ != nullptr) {
    device_runner_->abort("rank " + std::to_string(world_rank(loss.rank)) + " " + loss.how);
    keep_for_ever(device_runner_);
  }
  keep_for_ever(runner_);
  lost_batches_.add(running_.take_all());
  lost_batches_.add(launching_.take_all());
  const auto now = Clock::now();
  end_lost_batches(now);
  carry_out(coordinator_.decide(to_time(now)));
}

/// MPI and GPUs may still read the memory of what was running, so none of it is given back.
bool Lane::end_lost_batches(Clock::time_point now) {
  LostBatches::Batches rested = lost_batches_.take_rested(now);
  for (BatchQueue::Batch& batch : rested) {
    for (const auto& operation : batch.operations) {
      complete(operation,
               std::make_exception_ptr(PeerLostError(
                   describe(operation->request) + " on process set " + name_ + ": rank " +
                   std::to_string(world_rank(loss_->rank)) + " " + loss_->how)));
    }
    keep_for_ever(std::move(batch));
  }
  return !rested.empty();
}

void Lane::give_up_silent_rank() {
  if (const auto loss = watch_->find_silent()) declare_lost(*loss);
}

void Lane::complete(const std::shared_ptr<Operation>& operation, std::exception_ptr error) {
  if (operation->role == OperationRole::StandIn) return;  // nobody waits for it
  queue_.release(*operation);
  operation->error = std::move(error);
  operation->ended = Clock::now();
  {
    const std::lock_guard lock(ends_);
    operation->is_done.store(true, std::memory_order_release);
  }
  ended_.notify_all();
}

void Lane::publish_end(const std::string& how) {
  if (!home_.is_here()) return;
  // Not beside another thread's turn, which uses the board: one that lasts longer than this hangs
  // in a function of the program's, and the others find that the process has ended.
  constexpr int kLongestTurnMs = 500;
  std::unique_lock turn_lock(turn_, std::defer_lock);
  const bool is_in_turn = driver_ == std::this_thread::get_id();
  for (int ms = 0; !is_in_turn && ms < kLongestTurnMs && !turn_lock.try_lock(); ++ms) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (is_in_turn || turn_lock.owns_lock()) board_->publish_lost({rank(), how});
}

}  // namespace kolo::runtime
