#include "runtime/engine/batch_executor.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/intentional_leak.hpp"

namespace kolo::runtime {
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
