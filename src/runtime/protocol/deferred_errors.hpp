#pragma once

#include <cstddef>
#include <deque>
#include <list>
#include <optional>
#include <string>
#include <unordered_map>

#include "kolo/error.hpp"

namespace kolo::runtime {

/// Errors of uses that have failed on all ranks, but that this rank has not submitted yet: a queue
/// per name. Consecutive equal errors are kept as one with a count. Beyond `capacity` the oldest is
/// dropped: a rank that is so far behind waits for its own deadline instead.
class DeferredErrors {
 public:
  explicit DeferredErrors(std::size_t capacity = 8192) : capacity_(capacity) {}

  void add(const std::string& name, const Failure& failure);
  /// Removes and returns the error of the next use of `name`; none if that use has not failed.
  std::optional<Failure> take(const std::string& name);
  void clear();
  /// Entries held; consecutive equal errors are one.
  std::size_t size() const { return all_.size(); }

 private:
  struct DeferredError {
    std::string name;
    Failure failure;
    std::size_t uses;
  };
  using Place = std::list<DeferredError>::iterator;
  void remove_first(std::unordered_map<std::string, std::deque<Place>>::iterator of_name);

  std::size_t capacity_;
  std::list<DeferredError> all_;  // oldest first
  std::unordered_map<std::string, std::deque<Place>> by_name_;
};

}  // namespace kolo::runtime
