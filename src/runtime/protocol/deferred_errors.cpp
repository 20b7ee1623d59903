#include "runtime/protocol/deferred_errors.hpp"

#include <iterator>

namespace kolo::runtime {

void DeferredErrors::add(const std::string& name, const Failure& failure) {
  std::deque<Place>& queue = by_name_[name];
  if (!queue.empty() && queue.back()->failure == failure) {
    ++queue.back()->uses;
    return;
  }
  all_.push_back({name, failure, 1});
  queue.push_back(std::prev(all_.end()));
  if (all_.size() > capacity_) remove_first(by_name_.find(all_.front().name));
}

std::optional<Failure> DeferredErrors::take(const std::string& name) {
  const auto of_name = by_name_.find(name);
  if (of_name == by_name_.end()) return std::nullopt;
  DeferredError& next = *of_name->second.front();
  std::optional<Failure> failure = next.failure;
  if (--next.uses == 0) remove_first(of_name);
  return failure;
}

void DeferredErrors::remove_first(
    std::unordered_map<std::string, std::deque<Place>>::iterator of_name) {
  all_.erase(of_name->second.front());
  of_name->second.pop_front();
  if (of_name->second.empty()) by_name_.erase(of_name);
}

void DeferredErrors::clear() {
  all_.clear();
  by_name_.clear();
}

}  // namespace kolo::runtime
