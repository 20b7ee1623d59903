// The Oracle on errors: each must be deserved, and its text must name the right ranks.

#include <algorithm>
#include <cctype>
#include <set>

#include "support/protocol/oracle.hpp"

namespace kolo::simulator {

using runtime::Verdict;

namespace {

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

/// The lists of ranks in a text, such as "rank 3" or "ranks 0, 2 and 5", in order.
std::vector<std::vector<int>> ranks_in(const std::string& text) {
  std::vector<std::vector<int>> lists;
  for (std::size_t at = text.find("rank"); at != std::string::npos;
       at = text.find("rank", at + 1)) {
    std::size_t i = at + 4;
    const bool is_plural = i < text.size() && text[i] == 's';
    if (is_plural) ++i;
    if (i + 1 >= text.size() || text[i] != ' ' || !is_digit(text[i + 1])) continue;
    std::vector<int> list;
    bool is_last = !is_plural;
    for (++i;;) {
      int number = 0;
      while (i < text.size() && is_digit(text[i])) number = 10 * number + (text[i++] - '0');
      list.push_back(number);
      if (is_last) break;
      is_last = text.compare(i, 5, " and ") == 0;
      i += is_last ? 5 : 2;  // or ", "
      if (i >= text.size() || !is_digit(text[i])) break;
    }
    lists.push_back(std::move(list));
  }
  return lists;
}

}  // namespace

void Oracle::check_verdict(const Verdict& verdict) const {
  std::map<int, std::set<int>> variants;
  std::set<int> expired;
  for (int rank = 0; rank < scenario_.ranks; ++rank) {
    const Seen& seen = at(rank).seen[verdict.exchange % 2];
    if (seen.exchange != verdict.exchange) fail(rank, "a verdict came before this rank's report");
    for (const Seen::Use& use : seen.pending) {
      variants[use.name].insert(use.variant);
      if (use.is_expired) expired.insert(use.name);
    }
  }
  std::map<int, const Failure*> errors;
  for (const Verdict::NameError& error : verdict.errors) {
    if (!errors.emplace(std::stoi(error.name.substr(1)), &error.failure).second) {
      fail(0, "two errors for " + error.name + " in one verdict");
    }
  }
  for (const auto& [name, found] : variants) {
    const auto error = errors.find(name);
    const bool is_invalid =
        std::any_of(found.begin(), found.end(), [this, name = name](int variant) {
          return !request(name, variant).invalid_reason.empty();
        });
    const bool is_mismatch = !is_invalid && found.size() > 1;
    const bool is_timeout = !is_invalid && !is_mismatch && expired.count(name) > 0;
    if (error == errors.end()) {
      if (is_invalid)
        fail(0, "an invalid request of " + label(name) + " was reported and not found");
      if (is_mismatch) fail(0, "a mismatch of " + label(name) + " was reported and not found");
      if (is_timeout) fail(0, "a timeout of " + label(name) + " was reported and not found");
      continue;
    }
    const Failure& failure = *error->second;
    if (failure.text.find(label(name)) == std::string::npos) {
      fail(0, "an error does not name the tensor: " + failure.text);
    }
    if (failure.kind == ErrorKind::InvalidArgument && is_invalid) {
      check_invalid_request(name, failure.text, verdict.exchange);
    } else if (failure.kind == ErrorKind::Mismatch && is_mismatch) {
      check_mismatch(name, failure.text, verdict.exchange);
    } else if (failure.kind == ErrorKind::Timeout && is_timeout) {
      check_timeout(name, failure.text, verdict.exchange);
    } else {
      fail(0, "an error is not deserved: " + failure.text);
    }
    errors.erase(error);
  }
  if (!errors.empty())
    fail(0, "an error without anything pending: " + errors.begin()->second->text);
}

std::map<int, std::vector<int>> Oracle::seen_variants(int name, std::uint64_t exchange) const {
  std::map<int, std::vector<int>> ranks_of_variant;
  for (int rank = 0; rank < scenario_.ranks; ++rank) {
    for (const Seen::Use& use : at(rank).seen[exchange % 2].pending) {
      if (use.name == name) ranks_of_variant[use.variant].push_back(rank);
    }
  }
  return ranks_of_variant;
}

/// The text must state the problem, and all ranks that submitted this invalid request.
void Oracle::check_invalid_request(int name, const std::string& text,
                                   std::uint64_t exchange) const {
  const auto lists = ranks_in(text);
  for (const auto& [variant, ranks] : seen_variants(name, exchange)) {
    const std::string& reason = request(name, variant).invalid_reason;
    const bool is_named = !reason.empty() && text.find(reason) != std::string::npos;
    if (is_named && lists.size() == 1 && lists[0] == to_world(ranks)) return;
  }
  fail(0, "it does not say what is wrong on which ranks: " + text);
}

/// The text must have two lists of ranks, each with all ranks that submitted one variant.
void Oracle::check_mismatch(int name, const std::string& text, std::uint64_t exchange) const {
  const auto ranks_of_variant = seen_variants(name, exchange);
  const auto lists = ranks_in(text);
  if (lists.size() != 2 || lists[0] == lists[1]) fail(0, "two groups of ranks are due in: " + text);
  for (const auto& list : lists) {
    const bool is_right =
        std::any_of(ranks_of_variant.begin(), ranks_of_variant.end(),
                    [&](const auto& variant) { return to_world(variant.second) == list; });
    if (!is_right) fail(0, "wrong ranks in: " + text);
  }
}

/// First the ranks whose deadline passed, then those that had not submitted it, if any.
void Oracle::check_timeout(int name, const std::string& text, std::uint64_t exchange) const {
  std::vector<int> expired;
  std::vector<int> missing;
  for (int rank = 0; rank < scenario_.ranks; ++rank) {
    const Seen& seen = at(rank).seen[exchange % 2];
    const auto use = std::find_if(seen.pending.begin(), seen.pending.end(),
                                  [&](const Seen::Use& found) { return found.name == name; });
    if (use != seen.pending.end() && use->is_expired) expired.push_back(rank);
    if (use == seen.pending.end() && !seen.is_joined) missing.push_back(rank);
  }
  std::vector<std::vector<int>> due{to_world(expired)};
  if (!missing.empty()) due.push_back(to_world(missing));
  if (ranks_in(text) != due) fail(0, "wrong ranks in: " + text);
}

void Oracle::check_ending_text(ErrorKind kind, const std::string& text) const {
  const auto lists = ranks_in(text);
  if (lists.size() == 1 && lists[0].size() == 1) {
    for (int rank = 0; rank < scenario_.ranks; ++rank) {
      const Rank& r = at(rank);
      const bool is_cause =
          kind == ErrorKind::PeerLost ? r.is_lost || r.is_frozen : r.is_shutting_down;
      if (is_cause && scenario_.world_ranks[static_cast<std::size_t>(rank)] == lists[0][0]) return;
    }
  }
  fail(0, "it does not name a rank that is to blame: " + text);
}

void Oracle::check_stall(const Verdict::Stall& stall, std::uint64_t exchange) {
  const int name = std::stoi(stall.name.substr(1));
  std::vector<int> waiting;
  std::vector<int> missing;
  for (int rank = 0; rank < scenario_.ranks; ++rank) {
    const Seen& seen = at(rank).seen[exchange % 2];
    const bool is_waiting = std::any_of(seen.pending.begin(), seen.pending.end(),
                                        [&](const Seen::Use& use) { return use.name == name; });
    if (is_waiting) waiting.push_back(rank);
    if (PendingUse* use = pending(at(rank), name); is_waiting && use != nullptr)
      use->is_reported = true;
    if (!is_waiting && !seen.is_joined) missing.push_back(rank);
  }
  if (stall.waiting_ranks != waiting || stall.missing_ranks != missing) {
    fail(0, "a stall report of " + label(name) + " names the wrong ranks");
  }
}

std::vector<int> Oracle::to_world(const std::vector<int>& ranks) const {
  std::vector<int> world;
  for (const int rank : ranks) {
    world.push_back(scenario_.world_ranks[static_cast<std::size_t>(rank)]);
  }
  return world;
}

}  // namespace kolo::simulator
