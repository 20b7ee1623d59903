#include "runtime/protocol/negotiation.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <string_view>
#include <utility>

#include "base/text.hpp"

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

namespace {

std::vector<int> unite(const std::vector<int>& a, const std::vector<int>& b) {
  std::vector<int> all;
  std::set_union(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(all));
  return all;
}

/// Adds what other ranks say about the same request.
void unite(Report::Item& mine, const Report::Item& theirs) {
  mine.ranks = unite(mine.ranks, theirs.ranks);
  mine.expired_ranks = unite(mine.expired_ranks, theirs.expired_ranks);
  mine.stalled |= theirs.stalled;
}

const Request& request_of(const Report::Item& item, const RequestTable& table) {
  return item.request ? *item.request : *table.at(item.bit);
}

/// The error of a name under which some rank made an invalid call.
Failure invalid_request(const Report::Item& item, const Request& request, const SetNames& set) {
  return {ErrorKind::InvalidArgument, describe(request) + " on process set " + set.name + ": " +
                                          list_world_ranks(item.ranks, set.world_ranks) + ": " +
                                          request.invalid_reason};
}

Failure mismatch(const Report::Item& a, const Report::Item& b, const RequestTable& table,
                 const SetNames& set) {
  const Request& request = request_of(a, table);
  const Difference difference = first_difference(request, request_of(b, table));
  return {ErrorKind::Mismatch, "'" + request.name + "' on process set " + set.name + ": " +
                                   difference.field + " differs: " + difference.first + " on " +
                                   list_world_ranks(a.ranks, set.world_ranks) + ", " +
                                   difference.second + " on " +
                                   list_world_ranks(b.ranks, set.world_ranks) +
                                   ". All ranks must submit the same operation under one name."};
}

}  // namespace

void Report::merge(const Report& other) {
  const auto key_of = [](const Item& item) {
    return std::pair(item.bit, item.request ? std::string_view(item.request->name) : "");
  };
  std::multimap<std::pair<int, std::string_view>, Item*> places;  // indexed: there may be thousands
  for (Item& item : items) places.emplace(key_of(item), &item);
  std::vector<Item> added;
  for (const Item& theirs : other.items) {
    const auto [first, last] = places.equal_range(key_of(theirs));
    const auto place = std::find_if(
        first, last, [&](const auto& each) { return each.second->request == theirs.request; });
    if (place == last) {
      added.push_back(theirs);
      continue;
    }
    unite(*place->second, theirs);
  }
  std::move(added.begin(), added.end(), std::back_inserter(items));
  joined_ranks = unite(joined_ranks, other.joined_ranks);
  activities.insert(activities.end(), other.activities.begin(), other.activities.end());
}

std::vector<int> Judge::missing_ranks(const Report::Item& item) const {
  const std::vector<int> present = unite(item.ranks, joined_ranks_);
  std::vector<int> missing;
  for (int rank = 0; rank < static_cast<int>(set_.world_ranks.size()); ++rank) {
    if (!std::binary_search(present.begin(), present.end(), rank)) missing.push_back(rank);
  }
  return missing;
}

/// Every rank has it pending or has joined: it will run next.
bool Judge::is_complete(const Report::Item& item) const {
  return unite(item.ranks, joined_ranks_).size() == set_.world_ranks.size();
}

/// The error of a name, given all that is pending under it.
std::optional<Failure> Judge::failure_of(std::vector<Report::Item> variants,
                                         const RequestTable& table) const {
  for (const Report::Item& item : variants) {
    const Request& request = request_of(item, table);
    if (!request.invalid_reason.empty()) return invalid_request(item, request, set_);
  }
  if (variants.size() > 1) {
    std::sort(variants.begin(), variants.end(),
              [](const auto& a, const auto& b) { return a.ranks.front() < b.ranks.front(); });
    return mismatch(variants[0], variants[1], table, set_);
  }
  const Report::Item& only = variants.front();
  if (only.expired_ranks.empty()) return std::nullopt;
  return timeout(only, request_of(only, table));
}

Failure Judge::timeout(const Report::Item& item, const Request& request) const {
  const std::vector<int> missing = missing_ranks(item);
  std::string text = describe(request) + " on process set " + set_.name +
                     ": the deadline passed on " +
                     list_world_ranks(item.expired_ranks, set_.world_ranks);
  if (missing.empty()) {
    text += " before all ranks had submitted it";
  } else {
    text += " while " + list_world_ranks(missing, set_.world_ranks) + " had not submitted it";
  }
  return {ErrorKind::Timeout,
          text + activities_of(missing) +
              ". Submit it on every rank, or raise the timeout (KOLO_TIMEOUT)."};
}

/// ". Rank 3 is …", for the first few ranks.
std::string Judge::activities_of(const std::vector<int>& ranks) const {
  constexpr int kLongest = 4;
  std::string text;
  int count = 0;
  for (const int rank : ranks) {
    const auto found = std::ranges::find(activities_, rank, &Report::Activity::rank);
    if (found == activities_.end()) continue;
    if (++count > kLongest) return text + ". And so on";
    text += ". Rank " + std::to_string(set_.world_ranks[static_cast<std::size_t>(rank)]) + " is " +
            found->text;
  }
  return text;
}

void Judge::set_joined(std::vector<int> ranks) {
  if (ranks == joined_ranks_) return;
  joined_ranks_ = std::move(ranks);
  ByName all = std::exchange(complete_, {});
  all.merge(std::exchange(incomplete_, {}));
  for (auto& [name, item] : all) remember(name, std::move(item));
}

void Judge::remember(const std::string& name, Report::Item item) {
  (is_complete(item) ? complete_ : incomplete_).emplace(name, std::move(item));
}

/// Adds what earlier reports said about the name.
void Judge::recall(const std::string& name, std::vector<Report::Item>& variants) {
  for (ByName* const unknown : {&complete_, &incomplete_}) {
    const auto node = unknown->extract(name);
    if (node.empty()) continue;
    const Report::Item& earlier = node.mapped();
    const auto same = std::find_if(variants.begin(), variants.end(), [&](const auto& variant) {
      return variant.request == earlier.request;
    });
    if (same == variants.end()) {
      variants.push_back(earlier);
    } else {
      unite(*same, earlier);
    }
  }
}

/// The bits to evict so that all unknown requests fit. A request that is pending somewhere is
/// evicted only if it is one of those that wait for a rank, and only for one of the complete
/// requests that would not fit otherwise.
std::vector<int> Judge::evictions(const Bits& pending, const std::vector<int>& waiting,
                                  const RequestTable& table) const {
  const std::size_t unknown = complete_.size() + incomplete_.size();
  const std::size_t capacity = std::min(limits_.capacity, limits_.bits);
  std::vector<int> evicted;
  if (table.size() + unknown <= capacity) return evicted;
  const std::size_t count = table.size() + unknown - capacity;
  for (const int bit : table.by_last_run()) {
    if (evicted.size() == count) break;
    if (!pending.test(bit)) evicted.push_back(bit);
  }
  std::size_t room = limits_.bits - (table.size() - evicted.size());
  for (const int bit : waiting) {
    if (room >= complete_.size()) break;
    evicted.push_back(bit);
    ++room;
  }
  return evicted;
}

/// Assigns bits to unknown requests, as many as there is room for once the table has evicted.
void Judge::assign_bits(const RequestTable& table, Verdict& verdict) {
  std::size_t room = limits_.bits - (table.size() - verdict.evicted.size());
  std::size_t reused = 0;
  int next = 0;
  for (ByName* const unknown : {&complete_, &incomplete_}) {
    for (; room > 0 && !unknown->empty(); --room) {
      const auto node = unknown->extract(unknown->begin());
      int bit;
      if (reused < verdict.evicted.size()) {
        bit = verdict.evicted[reused++];
      } else {
        bit = table.free_bit(next);
        next = bit + 1;
      }
      verdict.blocked.push_back(node.key());
      verdict.added.push_back({bit, std::move(node.mapped().request)});
    }
  }
}

Verdict Judge::decide(Report report, const RequestTable& table) {
  Verdict verdict;
  verdict.exchange = report.exchange;
  set_joined(std::move(report.joined_ranks));
  activities_ = std::move(report.activities);
  std::map<std::string, std::vector<Report::Item>> names;
  Bits pending;
  for (Report::Item& item : report.items) {
    if (!item.request) pending.set(item.bit);
    names[request_of(item, table).name].push_back(std::move(item));
  }
  std::vector<int> waiting;
  for (auto& [name, variants] : names) {
    recall(name, variants);
    if (auto failure = failure_of(variants, table)) {
      verdict.errors.push_back({name, *std::move(failure)});
      continue;
    }
    Report::Item& only = variants.front();
    if (std::exchange(only.stalled, false)) {
      const std::vector<int> missing = missing_ranks(only);
      verdict.stalls.push_back({name, only.ranks, missing, activities_of(missing)});
    }
    if (only.request) {
      remember(name, std::move(only));
      continue;
    }
    if (!is_complete(only)) waiting.push_back(only.bit);
    verdict.blocked.push_back(name);
  }
  verdict.evicted = evictions(pending, waiting, table);
  assign_bits(table, verdict);
  return verdict;
}

}  // namespace kolo::runtime
