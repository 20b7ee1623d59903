#include "runtime/protocol/request_table.hpp"

#include <utility>

namespace kolo::runtime {

std::optional<int> RequestTable::find(const Request& request) const {
  const auto found = bits_of_name_.find(request.name);
  if (found == bits_of_name_.end()) return std::nullopt;
  for (const int bit : found->second) {
    if (*at(bit) == request) return bit;
  }
  return std::nullopt;
}

void RequestTable::add(int bit, SharedRequest request) {
  if (static_cast<std::size_t>(bit) >= entries_.size()) {
    entries_.resize(static_cast<std::size_t>(bit) + 1);
  }
  std::vector<int>& bits = bits_of_name_[request->name];
  bits.push_back(bit);
  update_ambiguous(bits);
  entry(bit) = {std::move(request), by_last_run_.insert(by_last_run_.end(), bit)};
  all_.set(bit);
  ++size_;
}

void RequestTable::remove(int bit) {
  const auto found = bits_of_name_.find(at(bit)->name);
  std::erase(found->second, bit);
  ambiguous_.reset(bit);
  update_ambiguous(found->second);
  if (found->second.empty()) bits_of_name_.erase(found);
  by_last_run_.erase(entry(bit).place);
  entry(bit) = {};
  all_.reset(bit);
  --size_;
}

void RequestTable::update_ambiguous(const std::vector<int>& bits_of_one_name) {
  for (const int bit : bits_of_one_name) {
    if (bits_of_one_name.size() > 1) {
      ambiguous_.set(bit);
    } else {
      ambiguous_.reset(bit);
    }
  }
}

Bits RequestTable::bits_of(const std::string& name) const {
  Bits bits;
  const auto found = bits_of_name_.find(name);
  if (found != bits_of_name_.end()) {
    for (const int bit : found->second) bits.set(bit);
  }
  return bits;
}

int RequestTable::free_bit(int from) const {
  while (all_.test(from)) ++from;
  return from;
}

}  // namespace kolo::runtime
