#include "runtime/negotiation.hpp"

#include <algorithm>
#include <iterator>
#include <map>

namespace kolo::runtime {
namespace {

std::vector<int> unite(const std::vector<int>& a, const std::vector<int>& b) {
  std::vector<int> all;
  std::set_union(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(all));
  return all;
}

/// "rank 3", "ranks 0, 2 and 5": of world ranks.
std::string list_ranks(const std::vector<int>& ranks, const SetNames& set) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(set.world_ranks[static_cast<std::size_t>(ranks[i])]);
  }
  return text;
}

/// All that the reports say about one name.
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

/// The error of a name under which some rank made a call that cannot run.
std::optional<Failure> defect(const NameReport& name, const SetNames& set) {
  for (const NameReport::Variant& variant : name.variants) {
    const Request& request = *variant.request;
    if (request.defect.empty()) continue;
    return Failure{ErrorKind::InvalidArgument, describe(request) + " on process set " + set.name +
                                                   ": " + list_ranks(variant.item->ranks, set) +
                                                   ": " + request.defect};
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
                                   list_ranks(a.item->ranks, set) + ", " + difference.second +
                                   " on " + list_ranks(b.item->ranks, set) +
                                   ". All ranks must submit the same operation under one name."};
}

Failure timeout(const NameReport& name, const Report& report, const SetNames& set) {
  const Request& request = *name.variants[0].request;
  const std::vector<int> missing = missing_ranks(name, report, set);
  std::vector<int> expired;
  for (const auto& variant : name.variants) expired = unite(expired, variant.item->expired_ranks);
  std::string text = describe(request) + " on process set " + set.name +
                     ": the deadline passed on " + list_ranks(expired, set);
  if (missing.empty()) {
    text += " before all ranks had submitted it";
  } else {
    text += " while " + list_ranks(missing, set) + " had not submitted it";
  }
  return {ErrorKind::Timeout,
          text + ". Submit it on every rank, or raise the timeout (KOLO_TIMEOUT)."};
}

/// Gives unknown requests their bits; makes room first where the table is full.
void assign_bits(const std::vector<const Request*>& unknown, const Report& report,
                 const RequestTable& table, std::size_t capacity, Verdict& verdict) {
  std::vector<int> idle;
  if (table.size() + unknown.size() > capacity) {
    Bits pending;
    for (const auto& item : report.items) {
      if (!item.request) pending.set(item.bit);
    }
    (table.all() - pending).for_each([&](int bit) { idle.push_back(bit); });
    std::sort(idle.begin(), idle.end(),
              [&](int a, int b) { return table.last_run(a) < table.last_run(b); });
    const std::size_t excess = table.size() + unknown.size() - capacity;
    if (idle.size() > excess) idle.resize(excess);
  }
  verdict.evicted = idle;
  std::size_t reused = 0;
  int next = 0;
  for (const Request* request : unknown) {
    int bit;
    if (reused < idle.size()) {
      bit = idle[reused++];
    } else {
      bit = table.free_bit(next);
      next = bit + 1;
    }
    verdict.added.push_back({bit, *request});
  }
}

}  // namespace

void Report::merge(const Report& other) {
  for (const Item& theirs : other.items) {
    const auto mine = std::find_if(items.begin(), items.end(), [&](const Item& item) {
      return item.bit == theirs.bit && item.request == theirs.request;
    });
    if (mine == items.end()) {
      items.push_back(theirs);
      continue;
    }
    mine->ranks = unite(mine->ranks, theirs.ranks);
    mine->expired_ranks = unite(mine->expired_ranks, theirs.expired_ranks);
    mine->stalled |= theirs.stalled;
  }
  joined_ranks = unite(joined_ranks, other.joined_ranks);
}

Verdict judge(const Report& report, const RequestTable& table, std::size_t capacity,
              const SetNames& set) {
  Verdict verdict;
  verdict.exchange = report.exchange;
  std::vector<const Request*> unknown;
  for (const auto& [name, found] : group_by_name(report, table)) {
    if (const auto failure = defect(found, set)) {
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
    if (!found.variants[0].is_known) unknown.push_back(found.variants[0].request);
    verdict.waiting.push_back(name);
  }
  assign_bits(unknown, report, table, capacity, verdict);
  return verdict;
}

}  // namespace kolo::runtime
