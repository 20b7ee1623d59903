#include "runtime/engine/batch_executor.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/deadline.hpp"
#include "base/intentional_leak.hpp"
#include "base/usual_floats.hpp"
#include "runtime/data/operation.hpp"

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

void LostBatches::add(Batches batches) {
  std::move(batches.begin(), batches.end(), std::back_inserter(batches_));
}

LostBatches::Batches LostBatches::take_drained(Clock::time_point now) {
  if (batches_.empty()) return {};
  if (!since_) since_ = now;
  if (!is_drained(now - *since_)) return {};
  return std::exchange(batches_, {});
}

bool LostBatches::is_drained(Clock::duration waited) {
  const std::vector<int> dead = world_.dead_peers();
  bool is_drained = true;  // all are asked: that makes their messages move
  for (Communicator* const communicator : communicators_) {
    is_drained &= this->is_drained(*communicator, waited, dead);
  }
  return is_drained || waited >= kMaxDrainTime;
}

bool LostBatches::is_drained(Communicator& communicator, Clock::duration waited,
                             const std::vector<int>& dead) const {
  const Communicator::UnderWay under_way = communicator.give_up_receives();
  const auto is_alive_rank = [&](int rank) { return is_alive(rank, dead); };
  const bool is_all_received = waited >= kDeadRankDelay
                                   ? std::ranges::none_of(under_way.from, is_alive_rank)
                                   : under_way.from.empty();
  return is_all_received && std::ranges::none_of(under_way.to, is_alive_rank);
}

/// As far as this rank knows.
bool LostBatches::is_alive(int rank, const std::vector<int>& dead) const {
  const int in_world = set_.world_rank(rank);
  return std::ranges::find(dead, in_world) == dead.end();
}

namespace {

Task wait_for(BatchQueue::EndOfBatches end) { co_await end; }

Task wait_for(std::vector<Transfer> transfers) {
  for (Transfer& transfer : transfers) co_await transfer;
}

bool is_on_gpu(const Request& request) { return request.device == DeviceKind::Cuda; }

}  // namespace

BatchExecutor::BatchExecutor(const SetContext& set, std::unique_ptr<Communicator> messages,
                             std::optional<DeviceParts> device, comm::World& world)
    : set_(set),
      runner_(std::make_shared<HostRunner>(world, set)),
      point_to_point_(std::make_unique<PointToPoint>(set, std::move(messages))),
      lost_(set, {set.communicator.get(), &point_to_point_->communicator()}, world) {
  if (!device) return;
  device_set_.emplace(std::move(device->set));
  device_runner_ =
      std::make_shared<DeviceRunner>(device->gpus, *device_set_, device->launches, device->number,
                                     device->is_matched_by_order, world.topology().local_rank);
}

std::shared_ptr<Operation> BatchExecutor::make_stand_in(const Request& request) const {
  return is_on_gpu(request) ? device_runner_->make_stand_in(request)
                            : runner_->make_stand_in(request);
}

void BatchExecutor::start(Operations operations, bool have_some_joined) {
  auto deadline = Clock::time_point::max();
  for (const auto& operation : operations) deadline = std::min(deadline, operation->deadline);
  const Request& first = operations.front()->request;
  if (is_on_gpu(first)) {
    Task task = device_runner_->run(operations, have_some_joined);
    on_gpu_.push({std::move(task), std::move(operations), overdue_at(deadline)});
    return;
  }
  Task task = runner_->run(operations, have_some_joined);
  on_cpu_.push({std::move(task), std::move(operations), overdue_at(deadline)});
}

void BatchExecutor::start_in_order(std::shared_ptr<Operation> operation,
                                   OrderedCommunicator& order) {
  if (is_on_gpu(operation->request)) {
    start({std::move(operation)}, false);
    return;
  }
  const auto deadline = operation->deadline;
  Operations one{std::move(operation)};
  Task task = runner_->run_in_order(one, order);
  on_cpu_.push({std::move(task), std::move(one), overdue_at(deadline)});
}

void BatchExecutor::start_join(std::shared_ptr<Operation> join) {
  on_cpu_.push({wait_for(on_gpu_.end_of_all()), {std::move(join)}, Clock::time_point::max()});
}

bool BatchExecutor::is_idle() {
  return on_cpu_.empty() && on_gpu_.empty() && !point_to_point_->is_moving() &&
         (device_runner_ == nullptr || device_runner_->is_idle());
}

void BatchExecutor::abort(const std::string& reason) {
  if (device_runner_ != nullptr) {
    on_gpu_.for_each([](Operation& operation) { operation.device.turn.reset(); });
    device_runner_->abort(reason);
    leak_intentionally(device_runner_);
  }
  leak_intentionally(runner_);
  lost_.add(on_cpu_.take_all());
  lost_.add(on_gpu_.take_all());
  LostBatches::Batches messages;
  for (auto& [operation, transfers] : point_to_point_->stop()) {
    messages.push_back({wait_for(std::move(transfers)), {std::move(operation)}, {}});
  }
  lost_.add(std::move(messages));
}

void BatchExecutor::release() {
  runner_.reset();
  point_to_point_.reset();
  if (device_runner_ == nullptr) return;
  device_runner_->release();
  device_set_->release();
}

Metrics::Bytes BatchExecutor::bytes() const {
  Metrics::Bytes bytes = runner_->bytes();
  bytes.messages += point_to_point_->communicator().bytes_sent();
  if (device_runner_ == nullptr) return bytes;
  bytes.gpus = device_runner_->bytes_sent();
  bytes.packed += device_runner_->bytes_packed();
  return bytes;
}

}  // namespace kolo::runtime
