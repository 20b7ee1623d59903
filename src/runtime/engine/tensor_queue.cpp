#include "runtime/engine/tensor_queue.hpp"

#include <utility>

#include "kolo/error.hpp"

namespace kolo::runtime {

void TensorQueue::submit(std::shared_ptr<Operation> operation) {
  const Lock lock(mutex_);
  const Request& request = operation->request;
  if (stopped_) throw ShutdownError(about(describe(request)) + *stopped_);
  if (is_matched_by_name(*operation) && !names_in_flight_.insert(request.name).second) {
    throw InvalidArgument(about(describe(request)) +
                          "an operation of this name is still in flight on this rank. Wait for "
                          "it first, or use another name.");
  }
  operation->use = next_use_++;
  incoming_.operations.push_back(std::move(operation));
  ++in_flight_;
}

void TensorQueue::join(std::shared_ptr<Operation> operation) {
  const Lock lock(mutex_);
  if (stopped_) throw ShutdownError(about("join") + *stopped_);
  if (std::exchange(has_joined_, true)) {
    throw InvalidArgument(about("join") + "this rank has joined already, and waits for the others");
  }
  operation->use = next_use_++;
  incoming_.join = std::move(operation);
  ++in_flight_;
}

std::string TensorQueue::about(const std::string& what) const {
  return what + " on process set " + process_set_ + ": ";
}

void TensorQueue::await(std::uint64_t use) {
  const Lock lock(mutex_);
  incoming_.awaited.push_back(use);
}

void TensorQueue::leave(Leaving how) {
  const Lock lock(mutex_);
  if (!incoming_.leaving) incoming_.leaving = how;
}

void TensorQueue::stop(std::string why) {
  const Lock lock(mutex_);
  stopped_ = std::move(why);
}

std::string TensorQueue::next_name(std::string_view kind) {
  const Lock lock(mutex_);
  const std::string prefix(kind);
  return prefix + ".unnamed." + std::to_string(unnamed_[prefix]++);
}

std::string TensorQueue::next_prefix(std::string_view kind) {
  const std::string name = next_name(kind);
  const Lock lock(mutex_);
  return joins_ == 0 ? name : name + " since join " + std::to_string(joins_);
}

TensorQueue::Taken TensorQueue::take() {
  const Lock lock(mutex_);
  Taken taken;
  taken.leaving = incoming_.leaving;  // stays set
  std::swap(taken, incoming_);
  return taken;
}

void TensorQueue::release(const Operation& operation) {
  const Lock lock(mutex_);
  if (operation.role == OperationRole::Join) {
    has_joined_ = false;
    unnamed_.clear();  // ranks have made different calls; from here on they make the same again
    ++joins_;
  } else if (is_matched_by_name(operation)) {
    names_in_flight_.erase(operation.request.name);
  }
  --in_flight_;
}

}  // namespace kolo::runtime
