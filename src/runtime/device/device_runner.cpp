#include "runtime/device/device_runner.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "base/deadline.hpp"
#include "base/text.hpp"
#include "kolo/error.hpp"
#include "ops/kernels/kernels.hpp"
#include "runtime/data/absent_ranks.hpp"
#include "runtime/data/dispatch.hpp"
#include "runtime/data/operation.hpp"
#include "runtime/data/set_context.hpp"

namespace kolo::runtime {
namespace {

constexpr auto kShortestPause = std::chrono::microseconds(50);
constexpr auto kLongestPause = std::chrono::milliseconds(1);

}  // namespace

void LaunchedBatches::add(comm::Gpu& gpu, Batch batch) {
  {
    const Lock lock(lock_);
    batches_.push_back(std::move(batch));
  }
  if (!thread_.joinable()) thread_ = std::thread([this, &gpu] { release_ended(gpu); });
  changed_.notify_one();
}

void LaunchedBatches::fail(std::exception_ptr error) {
  const Lock lock(lock_);
  if (!error_) error_ = std::move(error);
}

void LaunchedBatches::check() {
  const Lock lock(lock_);
  if (error_) std::rethrow_exception(error_);
}

bool LaunchedBatches::empty() {
  const Lock lock(lock_);
  return batches_.empty();
}

std::string LaunchedBatches::overdue(Operation::Clock::time_point now) {
  const Lock lock(lock_);
  if (batches_.empty() || now < batches_.front().give_up_at) return {};
  return describe(batches_.front().operations.front()->request);
}

double LaunchedBatches::seconds() {
  is_timed_ = true;
  const Lock lock(lock_);
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
    const Lock lock(lock_);
    is_stopping_ = true;
  }
  changed_.notify_one();
}

void LaunchedBatches::release_ended(comm::Gpu& gpu) {
  std::chrono::microseconds pause = kShortestPause;
  const Lock lock(lock_);
  while (true) {
    if (is_stopping_) return;
    if (batches_.empty()) {
      changed_.wait(lock_);
      continue;
    }
    Batch& first = batches_.front();  // deques do not move their elements
    lock_.unlock();
    std::optional<double> seconds;  // that the batch took, if it has ended
    std::exception_ptr error;
    try {
      if (gpu.has_passed(first.done.get())) {
        seconds = first.launch == nullptr
                      ? 0.0
                      : gpu.seconds_between(first.launch.get(), first.done.get());
      }
    } catch (...) {
      error = std::current_exception();
    }
    lock_.lock();
    if (error && !error_) error_ = error;
    if (error_) return;  // also that of fail()
    if (!seconds) {
      changed_.wait_for(lock_, pause, [&]() KOLO_REQUIRES(lock_) { return is_stopping_; });
      pause = std::min<std::chrono::microseconds>(2 * pause, kLongestPause);
      continue;
    }
    pause = kShortestPause;
    seconds_ += *seconds;
    std::optional<Batch> ended = std::move(batches_.front());
    batches_.pop_front();
    lock_.unlock();
    ended.reset();  // without the lock: owners may run deleters of the program
    lock_.lock();
  }
}

namespace {

constexpr int kConnectTag = Communicator::kTagCount - 1;  // algorithms use the low ones

/// A graph replayed on one rank would bypass what the ranks agree on, and events from outside the
/// graph invalidate its capture.
void require_no_capture(comm::Gpu& gpu, comm::DeviceStream stream, const char* why) {
  if (!gpu.is_capturing(stream)) return;
  throw InvalidArgument("the operation's stream is being captured into a CUDA graph, and " +
                        std::string(why) + " the capture, or use another stream.");
}

class DeviceScratch final : public ScratchMemory {
 public:
  DeviceScratch(comm::Gpu& gpu, comm::DeviceStream stream, Pool<std::byte>& pool)
      : gpu_(gpu), stream_(stream), pool_(pool) {}

  std::byte* allocate(std::size_t bytes) override {
    return buffers_.emplace_back(pool_.take([&] { return gpu_.allocate(bytes); }, bytes)).get();
  }
  void fill_identity(DType dtype, const Reduction& reduction, std::byte* to,
                     std::size_t count) override {
    // Complex types are only summed here, so their identity is zero.
    const DType real = real_type(dtype);
    alignas(std::int64_t) comm::Scalar identity{};
    ops::fill_identity(real, reduction, identity.data(), 1);
    gpu_.fill(to, count * parts_of(dtype), real, identity, stream_);
  }

 private:
  comm::Gpu& gpu_;
  comm::DeviceStream stream_;
  Pool<std::byte>& pool_;
  std::vector<std::shared_ptr<std::byte>> buffers_;
};

}  // namespace

DeviceRunner::DeviceRunner(comm::Gpus& gpus, const SetContext& set, LaunchQueue& launches,
                           int number, bool is_matched_by_order, int local_rank)
    : gpus_(gpus),
      set_(set),
      launches_(launches),
      number_(number),
      is_matched_by_order_(is_matched_by_order),
      gpu_(gpus, local_rank),
      traffic_(set.communicator->size()) {}

// --- any thread ---

void DeviceRunner::prepare(Operation& operation) {
  DeviceOrder& order = operation.device;
  comm::Gpu& gpu = gpu_.use(order.gpu);
  try {
    require_no_capture(gpu, order.stream,
                       "a collective cannot be part of it. Call it before or after");
    std::shared_ptr<CUevent_st> ready = events_.take([&] { return gpu.make_event(); });
    gpu.record(ready.get(), order.stream);
    order.ready = std::move(ready);
  } catch (const BackendError&) {  // as from every later call: the others must know
    launched_.fail(std::current_exception());
  }
}

void DeviceRunner::line_up(Operation& operation) {
  if (!has_peers()) return;
  operation.device.turn =
      is_matched_by_order_
          ? launches_.submit(number_, Deadline::at(operation.deadline),
                             describe(operation.request) + " on process set " + set_.name)
          : launches_.announce();
}

void DeviceRunner::order_after(const Operation& operation, comm::DeviceStream stream) {
  comm::Gpu& gpu = gpu_.use(operation.device.gpu);
  require_no_capture(gpu, stream, "it cannot wait for what runs outside. Wait before");
  gpu.wait(stream, operation.device.done.get());
}

// --- batches ---

Task DeviceRunner::connect(const Request& first) {
  if (communicator_ != nullptr) co_return;
  if (!set_.config.share_gpu) co_await require_own_gpus(first);
  co_await gpus_.connect(*set_.communicator, kConnectTag, gpu_.get(), communicator_);
  backend_.emplace(set_, gpu_.get(), *communicator_, gpu_.stream(), launch_, traffic_);
}

/// NCCL refuses two ranks on one GPU too, but with a poorer error text.
Task DeviceRunner::require_own_gpus(const Request& first) {
  const std::vector<std::size_t> own{gpu_.get().id()};
  std::vector<std::size_t> ids;
  co_await gather_numbers(set_, own, ids);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto same = std::find(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(i), ids[i]);
    const auto other = static_cast<std::size_t>(same - ids.begin());
    if (other == i) continue;
    const std::array same_gpu{set_.world_rank(static_cast<int>(other)),
                              set_.world_rank(static_cast<int>(i))};
    throw AgreedFailure{
        {ErrorKind::InvalidArgument,
         describe(first) + " on process set " + set_.name + ": " + list_ranks(same_gpu) +
             " use the same GPU. Put each rank's tensors on a GPU of its own, cuda:local_rank, and "
             "start at most as many ranks on a node as it has GPUs; or set KOLO_SHARE_GPU=on to "
             "try things out, slowly."}};
  }
}

/// Ends when all that comes before the batch has been launched; see LaunchQueue.
Task DeviceRunner::take_turn(const Operations& batch) {
  const bool is_world = number_ == 0;
  if (is_matched_by_order_) {
    turn_ = batch.front()->device.turn;
  } else {
    // A member may be late, as in a function of the program that allocates rows. What comes behind
    // this batch must not wait for it.
    std::vector<std::size_t> all;
    const std::vector<std::size_t> here(1);
    if (!is_world || batch.front()->request.has_allocated_outputs()) {
      co_await gather_numbers(set_, here, all);
    }
    turn_ = is_world ? launches_.enter_world() : launches_.propose(number_);
    if (!is_world) {
      LaunchTurn::Proposal greatest = turn_->proposal();
      const std::vector<std::size_t> own{greatest.first, greatest.second};
      co_await gather_numbers(set_, own, all);
      for (std::size_t i = 0; i < all.size(); i += 2) {
        greatest = std::max(greatest, {all[i], all[i + 1]});
      }
      turn_->agree(greatest);
    }
  }
  co_await *turn_;
}

/// Timers cost more.
std::shared_ptr<CUevent_st> DeviceRunner::take_event(bool is_timed) {
  comm::Gpu& gpu = gpu_.get();
  return is_timed ? timers_.take([&] { return gpu.make_timer(); })
                  : events_.take([&] { return gpu.make_event(); });
}

Task DeviceRunner::run(Operations batch, bool have_some_joined) {
  check_launched();  // `prepare` may have failed
  for (const auto& operation : batch) operation->started = Operation::Clock::now();
  std::vector<Bits> absent(batch.size());
  if (have_some_joined) co_await find_absent(set_, batch, absent);
  co_await connect(batch.front()->request);
  BatchPlan plan;
  co_await make_room(set_, *backend_, batch, absent, plan);
  comm::Gpu& gpu = gpu_.get();
  const comm::DeviceStream stream = gpu_.stream();
  if (has_peers()) {
    is_launching_ = !is_matched_by_order_;
    co_await take_turn(batch);
    // The stream orders what this set has launched.
    const std::shared_ptr<CUevent_st> last = launches_.last_launch();
    if (last != nullptr && last != launch_) gpu.wait(stream, last.get());
  }
  for (const auto& operation : batch) gpu.wait(stream, operation->device.ready.get());
  std::shared_ptr<void> mark = gpu.mark(batch.front()->request.name);
  const bool is_timed = launched_.is_timed();
  launch_ = take_event(is_timed);
  co_await dispatch(set_, *backend_, batch, absent, plan);
  const std::shared_ptr<CUevent_st> done = take_event(is_timed);
  gpu.record(done.get(), stream);
  for (const auto& operation : batch) operation->device.done = done;
  if (has_peers()) launches_.set_last_launch(launch_);
  turn_.reset();
  is_launching_ = false;
  const auto give_up_at = give_up_time(batch);
  launched_.add(gpu, {is_timed ? launch_ : nullptr, done, std::move(mark), give_up_at,
                      std::move(batch), backend_->take_outgrown()});
}

std::shared_ptr<Operation> DeviceRunner::make_stand_in(const Request& request) {
  const int index = gpu_.index();
  comm::Gpu& gpu = gpu_.use(index);
  auto operation = runtime::make_stand_in(
      set_, request, std::make_shared<DeviceScratch>(gpu, gpu_.stream(), scratch_));
  operation->device.gpu = index;
  operation->device.stream = gpu_.stream();
  prepare(*operation);
  return operation;
}

void DeviceRunner::check_launched() {
  launched_.check();
  if (launched_.empty() || communicator_ == nullptr) return;
  communicator_->ready();
  const std::string overdue = launched_.overdue(Operation::Clock::now());
  if (overdue.empty()) return;
  throw BackendError(overdue +
                     " was launched on the GPU and has not ended, although its deadline passed "
                     "long ago: a GPU hangs, or GPUs cannot reach one another. NCCL_DEBUG=INFO "
                     "says more.");
}

/// KOLO_LOST_AFTER after the latest of their deadlines.
Operation::Clock::time_point DeviceRunner::give_up_time(const Operations& batch) const {
  using TimePoint = Operation::Clock::time_point;
  TimePoint last{};
  for (const auto& operation : batch) last = std::max(last, operation->deadline);
  return later(last, set_.longest_silence());
}

void DeviceRunner::release() {
  if (is_aborted_) return;  // the GPU may still use everything
  launched_.end();
  backend_.reset();
  communicator_.reset();
  scratch_.close();
  gpu_.release_stream();
}

void DeviceRunner::abort(const std::string& reason) noexcept {
  is_aborted_ = true;
  turn_.reset();
  if (number_ == 0) launches_.lose_world();
  launched_.abandon();
  if (communicator_ == nullptr) return;
  abort_.begin(std::move(communicator_), reason);
}

}  // namespace kolo::runtime
