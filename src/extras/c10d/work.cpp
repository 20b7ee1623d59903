#include "extras/c10d/work.hpp"

#include <algorithm>
#include <memory>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/core/jit_type.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/graph_task.h>

#include "kolo/error.hpp"

namespace kolo::c10d_backend {

namespace {

thread_local std::vector<c10::intrusive_ptr<OperationWork>> of_backward;
thread_local int backward_task = -1;  // whose these are; one that has failed leaves them

}  // namespace

void OperationWork::wait_for_futures_of_backward() {
  for (const auto& work : std::exchange(of_backward, {})) {
    work->wait_until(Clock::time_point::max(), ProgramStream::beside(work->device()));
  }
}

OperationWork::OperationWork(int rank, Parts parts, std::weak_ptr<FutureThreads> futures)
    : Work(rank, parts.type, parts.title, parts.inputs),
      parts_(std::move(parts)),
      futures_(std::move(futures)) {}

/// Waits for all operations to end, also after an error, since they write to the outputs, and makes
/// the results on `stream`. Returns whether they have. The caller holds `use_`.
bool OperationWork::settle(Clock::time_point until, const ProgramStream& stream) {
  if (Work::isCompleted()) return true;
  const auto keep = [&](const std::exception_ptr& error) {
    if (!error_) error_ = error;
  };
  for (Handle& handle : parts_.handles) {
    try {
      if (until == Clock::time_point::max()) {
        handle.wait(stream.handle());
      } else if (!handle.wait_for(std::max(until - Clock::now(), Clock::duration{0}),
                                  stream.handle())) {
        return false;
      }
    } catch (...) {
      keep(std::current_exception());
    }
  }
  for (const auto& work : parts_.works) {
    if (!work->wait_until(until, stream)) return false;
    keep(work->exception());
  }
  try {
    if (!error_) make_results(stream);
  } catch (...) {
    keep(std::current_exception());
  }
  stream_ = stream;
  Work::finish(error_);
  return true;
}

void OperationWork::make_results(const ProgramStream& stream) {
  const auto on_stream = stream.make_current();
  for (const auto& work : parts_.works) work->stream_.order_before_current();
  parts_.messages.order_before_current();
  if (parts_.finish) std::exchange(parts_.finish, nullptr)();
  const at::NoGradGuard no_grad;
  for (const auto& [from, to] : std::exchange(parts_.copies, {})) {
    to.copy_(from);
    for (const at::Tensor& used : {from, to}) {
      if (used.is_cuda()) stream.keep(used.storage().data_ptr());
    }
  }
}

bool OperationWork::wait_until(Clock::time_point until, const ProgramStream& stream) {
  std::unique_lock lock(use_, std::defer_lock);
  if (until == Clock::time_point::max()) {
    lock.lock();
  } else if (!lock.try_lock_until(until)) {
    return false;
  }
  return settle(until, stream);
}

bool OperationWork::isCompleted() {
  if (!has_ended()) return false;
  if (parts_.device.is_cpu()) return true;
  const std::lock_guard lock(use_);
  if (!event_) {
    const auto on_stream = stream_.make_current();
    event_.emplace(parts_.device.type());
    event_->record(c10::impl::VirtualGuardImpl(parts_.device.type()).getStream(parts_.device));
  }
  return event_->query();
}

/// Whether all operations have ended; those on a GPU have been launched.
bool OperationWork::has_ended() {
  if (Work::isCompleted()) return true;
  const std::unique_lock lock(use_, std::try_to_lock);
  if (!lock.owns_lock()) return false;  // another thread waits for it
  const auto is_ready = [](const Handle& handle) { return handle.is_ready(); };
  const auto has_ended = [](const auto& work) { return work->has_ended(); };
  return std::ranges::all_of(parts_.handles, is_ready) &&
         std::ranges::all_of(parts_.works, has_ended) &&
         settle(Clock::now(), ProgramStream::beside(parts_.device));
}

bool OperationWork::wait_and_check(Clock::time_point until, const ProgramStream& stream) {
  constexpr std::chrono::milliseconds kBetweenChecks{100};
  const auto check = parts_.interpreter.check;
  while (!wait_until(check ? std::min(until, Clock::now() + kBetweenChecks) : until, stream)) {
    if (check) check();
    if (Clock::now() >= until) return false;
  }
  return true;
}

bool OperationWork::wait(std::chrono::milliseconds timeout) {
  const bool is_bounded = timeout != kNoTimeout && timeout < kForEver;
  const auto until = is_bounded ? Clock::now() + timeout : Clock::time_point::max();
  if (!wait_and_check(until, ProgramStream::current(parts_.device))) {
    throw TimeoutError(c10d::opTypeToString(retrieveOpType()) + " did not end within the " +
                       std::to_string(timeout.count()) +
                       " ms of Work::wait(). It goes on; wait for it again, or longer.");
  }
  if (const std::exception_ptr error = Work::exception()) std::rethrow_exception(error);
  stream_.order_before_current();
  release_memory();
  return true;
}

void OperationWork::release_memory() {
  const std::lock_guard lock(use_);
  const auto memory = std::exchange(parts_.memory, nullptr);
  // Otherwise the operation has it until the GPU has run it.
  if (memory != nullptr && parts_.program.is_current()) memory->clear();
  for (const auto& work : parts_.works) work->release_memory();
}

/// A rank may ask for the future of a receive before it does what the sender waits for.
bool OperationWork::is_point_to_point() const {
  using enum c10d::OpType;
  return parts_.type == SEND || parts_.type == RECV || parts_.type == RECVANYSOURCE ||
         std::ranges::any_of(parts_.works, [](const auto& w) { return w->is_point_to_point(); });
}

c10::intrusive_ptr<c10::ivalue::Future> OperationWork::getFuture() {
  const std::shared_ptr<FutureThreads> futures = futures_.lock();
  const bool must_wait = futures != nullptr && futures->is_in_callback();
  // Not under the lock: another thread may wait for it while it holds the interpreter's.
  if (must_wait || (!is_point_to_point() && parts_.interpreter.is_calling())) {
    parts_.interpreter.unlock_while(
        [&] { wait_and_check(Clock::time_point::max(), ProgramStream::beside(parts_.device)); });
  }
  const std::lock_guard lock(future_lock_);
  if (future_) return future_;
  if (futures == nullptr && !has_ended()) {
    throw ShutdownError(
        "the future of a work: its process group has been destroyed. Ask for it before that.");
  }
  std::vector<c10::Device> gpu;
  const auto on_gpu = std::ranges::find_if(
      parts_.outputs, [](const at::Tensor& output) { return output.is_cuda(); });
  if (on_gpu != parts_.outputs.end()) gpu.push_back(on_gpu->device());
  future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                     std::move(gpu));
  if (has_ended()) {
    complete(*future_);
  } else {
    const int task = torch::autograd::get_current_graph_task_id();
    if (std::exchange(backward_task, task) != task) of_backward.clear();
    if (task != -1 && parts_.device.is_cpu() && !is_point_to_point()) {
      of_backward.push_back(c10::intrusive_ptr<OperationWork>::reclaim_copy(this));
    }
    futures->expect_one();
    const auto left = std::make_shared<std::atomic<int>>(1);
    const auto notice = [work = c10::intrusive_ptr<OperationWork>::reclaim_copy(this), left,
                         &futures = *futures] {
      if (--*left == 0) futures.add(work);
    };
    notify_of_each(*left, notice);
    notice();
  }
  return future_;
}

/// Has `notice` called at the end of each operation, and counts them in `left` before.
void OperationWork::notify_of_each(std::atomic<int>& left, const std::function<void()>& notice) {
  for (const Handle& handle : parts_.handles) {
    ++left;
    handle.notify(notice);
  }
  for (const auto& work : parts_.works) work->notify_of_each(left, notice);
}

/// The work has ended.
void OperationWork::complete(c10::ivalue::Future& future) {
  if (const std::exception_ptr error = Work::exception()) {
    future.setError(error);
  } else {
    const auto on_stream = stream_.make_current();  // which those who wait will wait for
    future.markCompleted(c10::IValue(parts_.outputs));
  }
}

std::shared_ptr<FutureThreads> FutureThreads::make() {
  return {new FutureThreads, [process = ::getpid()](FutureThreads* futures) {
            // A forked child does not have the threads, and the condition would wait for them.
            if (process != ::getpid()) return;
            if (futures->is_in_callback()) {  // which alone had the group: no thread joins itself
              std::thread([futures] { delete futures; }).detach();
            } else {
              delete futures;
            }
          }};
}

FutureThreads::~FutureThreads() {
  {
    const std::lock_guard lock(lock_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void FutureThreads::expect_one() {
  const std::lock_guard lock(lock_);
  ++expected_;
  if (threads_.front().joinable()) return;
  for (std::thread& thread : threads_) thread = std::thread([this] { loop(); });
}

void FutureThreads::add(c10::intrusive_ptr<OperationWork> work) {
  const std::lock_guard lock(lock_);
  works_.push_back(std::move(work));
  changed_.notify_one();  // under the lock: the threads may end with this work
}

bool FutureThreads::is_in_callback() {
  const std::lock_guard lock(lock_);
  return std::ranges::find(threads_, std::this_thread::get_id(), &std::thread::get_id) !=
         threads_.end();
}

void FutureThreads::loop() {
  for (;;) {
    c10::intrusive_ptr<OperationWork> work;
    {
      std::unique_lock lock(lock_);
      changed_.wait(lock, [&] { return !works_.empty() || (is_stopping_ && expected_ == 0); });
      if (works_.empty()) return;
      work = std::move(works_.front());
      works_.pop_front();
      if (--expected_ == 0 && is_stopping_) changed_.notify_all();
    }
    work->wait_until(OperationWork::Clock::time_point::max(),
                     ProgramStream::beside(work->device()));
    work->complete(*work->future_);
  }
}

}  // namespace kolo::c10d_backend
