#include "runtime/protocol/negotiation.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <string_view>
#include <utility>

#include "base/rank_list.hpp"

namespace kolo::runtime {
namespace {

std::vector<int> unite(const std::vector<int>& a, const std::vector<int>& b) {
  std::vector<int> all;
  std::set_union(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(all));
  return all;
}

/// The contents of all reports about one name.
struct NameReport {
  struct Variant {
    const Request* request;
    bool is_known;
    const Report::Item* item;
  };
  std::vector<Variant> variants;
  std::vector<int> ranks;
  bool expired = false;
  bool stalled = false;
};

std::map<std::string, NameReport> group_by_name(const Report& report, const RequestTable& table) {
  std::map<std::string, NameReport> names;
  for (const Report::Item& item : report.items) {
    const bool is_known = !item.request.has_value();
    const Request& request = is_known ? *table.at(item.bit) : *item.request;
    NameReport& name = names[request.name];
    name.variants.push_back({&request, is_known, &item});
    name.ranks = unite(name.ranks, item.ranks);
    name.expired |= !item.expired_ranks.empty();
    name.stalled |= item.stalled;
  }
  return names;
}

std::vector<int> missing_ranks(const NameReport& name, const Report& report, const SetNames& set) {
  const std::vector<int> present = unite(name.ranks, report.joined_ranks);
  std::vector<int> missing;
  for (int rank = 0; rank < static_cast<int>(set.world_ranks.size()); ++rank) {
    if (!std::binary_search(present.begin(), present.end(), rank)) missing.push_back(rank);
  }
  return missing;
}

/// The error of a name under which some rank made an invalid call.
std::optional<Failure> invalid_request(const NameReport& name, const SetNames& set) {
  for (const NameReport::Variant& variant : name.variants) {
    const Request& request = *variant.request;
    if (request.invalid_reason.empty()) continue;
    return Failure{ErrorKind::InvalidArgument,
                   describe(request) + " on process set " + set.name + ": " +
                       list_world_ranks(variant.item->ranks, set.world_ranks) + ": " +
                       request.invalid_reason};
  }
  return std::nullopt;
}

Failure mismatch(NameReport name, const SetNames& set) {
  std::sort(name.variants.begin(), name.variants.end(), [](const auto& a, const auto& b) {
    return a.item->ranks.front() < b.item->ranks.front();
  });
  const NameReport::Variant& a = name.variants[0];
  const NameReport::Variant& b = name.variants[1];
  const Difference difference = first_difference(*a.request, *b.request);
  return {ErrorKind::Mismatch, "'" + a.request->name + "' on process set " + set.name + ": " +
                                   difference.field + " differs: " + difference.first + " on " +
                                   list_world_ranks(a.item->ranks, set.world_ranks) + ", " +
                                   difference.second + " on " +
                                   list_world_ranks(b.item->ranks, set.world_ranks) +
                                   ". All ranks must submit the same operation under one name."};
}

Failure timeout(const NameReport& name, const Report& report, const SetNames& set) {
  const Request& request = *name.variants[0].request;
  const std::vector<int> missing = missing_ranks(name, report, set);
  std::vector<int> expired;
  for (const auto& variant : name.variants) expired = unite(expired, variant.item->expired_ranks);
  std::string text = describe(request) + " on process set " + set.name +
                     ": the deadline passed on " + list_world_ranks(expired, set.world_ranks);
  if (missing.empty()) {
    text += " before all ranks had submitted it";
  } else {
    text += " while " + list_world_ranks(missing, set.world_ranks) + " had not submitted it";
  }
  return {ErrorKind::Timeout,
          text + ". Submit it on every rank, or raise the timeout (KOLO_TIMEOUT)."};
}

/// The only request under a name; it has a bit or needs one.
struct Candidate {
  const NameReport::Variant* variant;
  bool is_complete;  // every rank has it pending or has joined: it will run next
};

/// The bits of `count` requests that are pending nowhere, or of all there are, least recently run
/// first.
std::vector<int> idle_bits(const Report& report, const RequestTable& table, std::size_t count) {
  Bits pending;
  for (const auto& item : report.items) {
    if (!item.request) pending.set(item.bit);
  }
  std::vector<int> idle;
  for (const int bit : table.by_last_run()) {
    if (idle.size() == count) break;
    if (!pending.test(bit)) idle.push_back(bit);
  }
  return idle;
}

/// The bits to evict so that `unknown` requests fit. A pending request is evicted only if it waits
/// for a rank, and only for one of the `complete` requests that would not fit otherwise.
std::vector<int> evictions(const std::vector<Candidate>& known, std::size_t unknown,
                           std::size_t complete, const Report& report, const RequestTable& table,
                           const TableLimits& limits) {
  const std::size_t capacity = std::min(limits.capacity, limits.bits);
  if (table.size() + unknown <= capacity) return {};
  std::vector<int> evicted = idle_bits(report, table, table.size() + unknown - capacity);
  std::size_t room = limits.bits - (table.size() - evicted.size());
  for (const Candidate& candidate : known) {
    if (room >= complete) break;
    if (candidate.is_complete) continue;
    evicted.push_back(candidate.variant->item->bit);
    ++room;
  }
  return evicted;
}

/// Assigns bits to unknown requests; a full table evicts others first.
void assign_bits(const std::vector<Candidate>& known, std::vector<Candidate> unknown,
                 const Report& report, const RequestTable& table, const TableLimits& limits,
                 Verdict& verdict) {
  const auto first_incomplete = std::stable_partition(
      unknown.begin(), unknown.end(), [](const Candidate& each) { return each.is_complete; });
  const auto complete = static_cast<std::size_t>(first_incomplete - unknown.begin());
  verdict.evicted = evictions(known, unknown.size(), complete, report, table, limits);
  const std::size_t room = limits.bits - (table.size() - verdict.evicted.size());
  unknown.resize(std::min(unknown.size(), room));
  std::size_t reused = 0;
  int next = 0;
  for (const Candidate& candidate : unknown) {
    int bit;
    if (reused < verdict.evicted.size()) {
      bit = verdict.evicted[reused++];
    } else {
      bit = table.free_bit(next);
      next = bit + 1;
    }
    verdict.added.push_back({bit, *candidate.variant->request});
  }
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
    Item& mine = *place->second;
    mine.ranks = unite(mine.ranks, theirs.ranks);
    mine.expired_ranks = unite(mine.expired_ranks, theirs.expired_ranks);
    mine.stalled |= theirs.stalled;
  }
  std::move(added.begin(), added.end(), std::back_inserter(items));
  joined_ranks = unite(joined_ranks, other.joined_ranks);
}

Verdict judge(const Report& report, const RequestTable& table, const TableLimits& limits,
              const SetNames& set) {
  Verdict verdict;
  verdict.exchange = report.exchange;
  std::vector<Candidate> known;
  std::vector<Candidate> unknown;
  const std::map<std::string, NameReport> names = group_by_name(report, table);
  for (const auto& [name, found] : names) {
    if (const auto failure = invalid_request(found, set)) {
      verdict.errors.push_back({name, *failure});
      continue;
    }
    if (found.variants.size() > 1) {
      verdict.errors.push_back({name, mismatch(found, set)});
      continue;
    }
    if (found.expired) {
      verdict.errors.push_back({name, timeout(found, report, set)});
      continue;
    }
    if (found.stalled) {
      verdict.stalls.push_back({name, found.ranks, missing_ranks(found, report, set)});
    }
    const NameReport::Variant& variant = found.variants[0];
    (variant.is_known ? known : unknown)
        .push_back({&variant, missing_ranks(found, report, set).empty()});
    verdict.blocked.push_back(name);
  }
  assign_bits(known, std::move(unknown), report, table, limits, verdict);
  return verdict;
}

}  // namespace kolo::runtime
