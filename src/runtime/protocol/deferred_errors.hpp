#pragma once

#include <cstddef>
#include <deque>
#include <list>
#include <optional>
#include <string>
#include <unordered_map>

#include "kolo/error.hpp"

namespace kolo::runtime {

/// Errors that ended uses of names on all ranks before this rank has made those uses: a queue per
/// name. Equal errors in a row are kept as one with a count. Of more than `capacity` the oldest is
/// dropped: a rank that is so far behind waits for its own deadline.
class DeferredErrors {
 public:
  explicit DeferredErrors(std::size_t capacity = 8192) : capacity_(capacity) {}

  void add(const std::string& name, const Failure& failure);
  /// The error of the next use of `name`, if it has ended in one.
  std::optional<Failure> take(const std::string& name);
  void clear();
  /// Errors that there is memory for.
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
