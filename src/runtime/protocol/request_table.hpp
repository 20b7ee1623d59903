#pragma once

#include <cstddef>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/protocol/bits.hpp"
#include "runtime/protocol/request.hpp"

namespace kolo::runtime {

/// The requests that all ranks of a process set know, each under a bit. Only verdicts change it, so
/// it is the same on every rank at the end of each exchange. Several requests may share a name.
class RequestTable {
 public:
  /// The request's bit; none if it is unknown.
  std::optional<int> find(const Request& request) const;
  void add(int bit, SharedRequest request);
  void remove(int bit);

  const SharedRequest& at(int bit) const { return entry(bit).request; }
  /// The bits of all requests under `name`.
  Bits bits_of(const std::string& name) const;
  const Bits& all() const { return all_; }
  /// The bits of names that have several requests.
  const Bits& ambiguous() const { return ambiguous_; }
  std::size_t size() const { return size_; }
  /// The lowest free bit that is at least `from`.
  int free_bit(int from) const;

  /// The request has run.
  void touch(int bit) { by_last_run_.splice(by_last_run_.end(), by_last_run_, entry(bit).place); }
  /// The bits by the last run, or addition, the least recent first: the order of evictions.
  const std::list<int>& by_last_run() const { return by_last_run_; }

 private:
  void update_ambiguous(const std::vector<int>& bits_of_one_name);

  struct Entry {
    SharedRequest request;
    std::list<int>::iterator place;  // in by_last_run_
  };
  const Entry& entry(int bit) const { return entries_[static_cast<std::size_t>(bit)]; }
  Entry& entry(int bit) { return entries_[static_cast<std::size_t>(bit)]; }

  std::vector<Entry> entries_;
  std::list<int> by_last_run_;
  std::unordered_map<std::string, std::vector<int>> bits_of_name_;
  Bits all_;
  Bits ambiguous_;
  std::size_t size_ = 0;
};

}  // namespace kolo::runtime
