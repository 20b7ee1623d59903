#include "support/protocol/random_scenario.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "support/protocol/grammar.hpp"

namespace kolo::simulator {

using runtime::Request;

namespace {

constexpr int kSettlingPeriods = 5;

}  // namespace

std::string Grammar::title() const {
  const std::vector<const char*> styles{"async",    "blocking", "mixed",
                                        "permuted", "shuffled", "lazy"};
  std::string text =
      std::to_string(scenario.ranks) + " ranks" +
      (scenario.by_messages ? ", tree of width " + std::to_string(scenario.tree_width)
                            : std::string(", shared memory")) +
      ", " + styles[static_cast<std::size_t>(style)] + ", rounds";
  for (const std::vector<int>& order : orders) {
    text += " (";
    for (const int name : order) text.append(" n").append(std::to_string(name));
    text += " )";
  }
  text += " each " + std::to_string(rounds_per_order) + " times, patience " +
          std::to_string(scenario.patience.count() / 1000) + " us, fusion up to " +
          std::to_string(scenario.fusion_bytes) + " bytes, " +
          std::to_string(scenario.faults.size()) + " faults";
  return text;
}

void Grammar::choose_world() {
  const int kind = random.between(0, 99);
  scenario.ranks = kind < 4    ? 1
                   : kind < 54 ? random.between(2, 4)
                   : kind < 84 ? random.between(5, 8)
                               : random.between(9, 16);
  scenario.tree_width = random.between(1, 8);
  scenario.by_messages = one_in(2);
  const int stride = random.between(1, 2);
  const int first = random.between(0, 1) * random.between(0, 5);
  for (int rank = 0; rank < scenario.ranks; ++rank) {
    scenario.world_ranks.push_back(first + stride * rank);
  }
  scenario.programs.resize(static_cast<std::size_t>(scenario.ranks));
}

void Grammar::choose_requests(int names) {
  for (int name = 0; name < names; ++name) {
    std::vector<Request> variants{make_request(name)};
    for (int more = random.between(0, 2); more > 0; --more) {
      Request other = variants.front();
      vary(other);
      if (std::find(variants.begin(), variants.end(), other) == variants.end()) {
        variants.push_back(other);
      }
    }
    scenario.names.push_back(std::move(variants));
  }
  if (one_in(2)) scenario.fusion_bytes = static_cast<std::size_t>(random.between(0, 4)) * 512;
}

Request Grammar::make_request(int name) {
  Request request;
  request.name = std::string("n").append(std::to_string(name));
  request.tensors = {{DType::Float32, {random.between(1, 8), random.between(1, 64)}}};
  if (one_in(5)) request.tensors[0].dtype = DType::Float16;
  if (one_in(6)) {
    request.collective =
        random.pick(std::vector{Collective::Broadcast, Collective::AllGather, Collective::Barrier});
    request.root = random.pick(scenario.world_ranks);
  }
  if (one_in(8)) request.fusible = false;
  return request;
}

void Grammar::vary(Request& request) {
  switch (random.between(0, 5)) {
    case 0: request.tensors[0].shape.front() += random.between(1, 3); break;
    case 1: request.tensors[0].dtype = DType::Float64; break;
    case 2: request.op = ReduceOp::Max; break;
    case 3: request.root = random.pick(scenario.world_ranks); break;
    case 4: request.invalid_reason = "it cannot be right"; break;
    default: request.collective = Collective::AllGather;
  }
}

void Grammar::choose_orders(int names) {
  std::vector<int> all;
  for (int name = 0; name < names; ++name) all.push_back(name);
  if (one_in(2)) random.shuffle(all);
  orders = {all};
  const int more = one_in(2) ? 0 : random.between(1, 2);
  for (int i = 0; i < more; ++i) {
    std::vector<int> order = all;
    if (one_in(2)) random.shuffle(order);
    if (one_in(2)) order.resize(static_cast<std::size_t>(random.between(1, names)));
    orders.push_back(order);
  }
  rounds_per_order = more == 0 || one_in(2) ? 1 : random.between(2, 4);
}

/// `own_permutation`: positions of a round's names, of any length.
void Grammar::write_round(int rank, int round, const std::vector<int>& own_permutation) {
  const std::size_t index = static_cast<std::size_t>(round / rounds_per_order) % orders.size();
  std::vector<int> order = orders[index];
  if (style == Style::Permuted || style == Style::Shuffled) {
    std::vector<int> permuted;
    for (const int place : own_permutation) {
      if (place < std::ssize(order)) permuted.push_back(order[static_cast<std::size_t>(place)]);
    }
    order = permuted;
    if (style == Style::Shuffled) random.shuffle(order);
  }
  Program& steps = program(rank);
  for (std::size_t i = 0; i < order.size(); ++i) {
    steps.push_back({Step::Kind::Submit, order[i]});
    if (style == Style::Blocking) steps.push_back({Step::Kind::Wait, order[i]});
    if (style == Style::Mixed && one_in(3)) {
      const auto earlier = static_cast<std::size_t>(random.between(0, static_cast<int>(i)));
      steps.push_back({Step::Kind::Wait, order[earlier]});
    }
  }
  if (style != Style::Lazy) steps.push_back({Step::Kind::WaitAll});
}

/// Rank r omits the last rounds_less[r] rounds.
void Grammar::write_programs(int from_round, int to_round, const std::vector<int>& rounds_less) {
  for (int rank = 0; rank < scenario.ranks; ++rank) {
    std::vector<int> permutation;
    for (int i = 0; i < std::ssize(scenario.names); ++i) permutation.push_back(i);
    random.shuffle(permutation);
    const int end = to_round - rounds_less[static_cast<std::size_t>(rank)];
    for (int round = from_round; round < end; ++round) write_round(rank, round, permutation);
  }
}

/// One set in several orders, or several disjoint sets, as a GAN's. (Sets that overlap partly are
/// predicted too, but where one round ends and the next begins depends on chance, so a rare wake-up
/// request remains.)
void Grammar::choose_settling_orders() {
  std::vector<int> all = orders.front();
  if (orders.size() == 1) return;
  if (one_in(2) || all.size() < orders.size()) {
    for (std::vector<int>& order : orders) order = all;
    random.shuffle(orders.back());
    return;
  }
  const std::size_t count = orders.size();
  for (std::vector<int>& order : orders) order.clear();
  for (std::size_t i = 0; i < all.size(); ++i) orders[i % count].push_back(all[i]);
}

/// A steady, alternating or blocking program without disturbances.
void Grammar::settle() {
  choose_settling_orders();
  const std::vector<Style> styles{Style::Async, Style::Async, Style::Blocking, Style::Permuted};
  style = random.pick(styles);
  Delays& delays = scenario.delays;
  delays.call = microseconds(random.between(1, 10));
  delays.wake = microseconds(random.between(1, 20));
  delays.transfer = microseconds(random.between(1, 20));
  delays.data = microseconds(random.between(1, 100));
  scenario.patience = microseconds(one_in(2) ? 100'000 : 10'000'000);
  const int period = rounds_per_order * static_cast<int>(orders.size());
  const std::vector<int> none(static_cast<std::size_t>(scenario.ranks));
  // The first period introduces the names, which are predicted once they have run twice. While
  // predictions fail, the order within a round is random, and a wrong model may be chosen until the
  // right ones have the longest matches.
  write_programs(0, kSettlingPeriods * period, none);
  for (Program& steps : scenario.programs) steps.push_back({Step::Kind::Settled});
  write_programs(kSettlingPeriods * period, (kSettlingPeriods + 2) * period, none);
  scenario.must_finish = true;
}

Scenario random_scenario(std::uint64_t seed) {
  Grammar grammar(seed);
  grammar.choose_world();
  const int size = grammar.random.between(0, 99);
  const int names = size < 70   ? grammar.random.between(1, 6)
                    : size < 94 ? grammar.random.between(7, 14)
                                : grammar.random.between(15, 40);
  grammar.choose_requests(names);
  grammar.choose_orders(names);
  if (grammar.one_in(5)) {
    grammar.settle();
  } else {
    grammar.disturb();
  }
  grammar.scenario.title = grammar.title();
  return grammar.scenario;
}

}  // namespace kolo::simulator
