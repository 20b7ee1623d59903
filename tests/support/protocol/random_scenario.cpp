#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "support/protocol/scenario.hpp"
#include "support/random.hpp"

namespace kolo::simulator {

using runtime::Request;

Time microseconds(std::int64_t count) { return Time{count * 1'000}; }

/// How the ranks run a round, which is a list of names.
enum class Style {
  Async,     // submit all, then wait for all
  Blocking,  // wait for each
  Mixed,     // wait for some earlier one occasionally
  Permuted,  // each rank has its own fixed order; wait at the end
  Shuffled,  // each rank has a new order every round; wait at the end
  Lazy,      // wait only where a name is submitted again
};

/// The choices made while a scenario is generated.
struct Grammar {
  Random random;
  Scenario scenario;
  Style style = Style::Async;
  std::vector<std::vector<int>> orders;  // of the rounds, used in turn
  int rounds_per_order = 1;              // before the next order is used
  int rounds = 1;
  bool may_deadlock = false;
  bool all_have_timeouts = false;

  explicit Grammar(std::uint64_t seed) : random(seed) { scenario.seed = seed ^ 0x5eed; }

  bool one_in(int count) { return random.one_in(count); }
  Program& program(int rank) { return scenario.programs[static_cast<std::size_t>(rank)]; }

  std::string title() const;
  void choose_world();
  void choose_requests(int names);
  runtime::Request make_request(int name);
  void vary(runtime::Request& request);
  void choose_orders(int names);
  void choose_delays();
  void write_round(int rank, int round, const std::vector<int>& own_permutation);
  void write_programs(int from_round, int to_round, const std::vector<int>& rounds_less);
  void settle();
  void choose_settling_orders();
  void disturb();
  void add_timeouts();
  void add_skips();
  void add_mismatches();
  void add_shutdowns();
  void add_faults();
  void add_stragglers();
  void write_joins();
};

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

// --- faults ---

/// Generates a program in which anything may go wrong.
void Grammar::disturb() {
  const std::vector<Style> styles{Style::Async,    Style::Async,    Style::Blocking, Style::Mixed,
                                  Style::Permuted, Style::Shuffled, Style::Lazy};
  style = random.pick(styles);
  choose_delays();
  rounds = random.between(1, 10);
  if (scenario.names.size() > 12) rounds = std::min(rounds, 4);
  const bool has_joins = one_in(4);
  if (has_joins) {
    write_joins();
  } else {
    write_programs(0, rounds, std::vector<int>(static_cast<std::size_t>(scenario.ranks)));
  }
  if (one_in(4)) scenario.table_capacity = static_cast<std::size_t>(random.between(1, 6));
  if (one_in(4)) scenario.table_bits = static_cast<std::size_t>(random.between(1, 6));
  if (one_in(2)) add_stragglers();
  if (one_in(3)) add_mismatches();
  if (one_in(3)) add_skips();
  if (one_in(3)) add_timeouts();
  if (one_in(12)) scenario.stall_warn = microseconds(random.between(1'000, 100'000));
  scenario.must_finish = !may_deadlock || all_have_timeouts;
  if (one_in(6)) add_shutdowns();
  if (one_in(5)) add_faults();
}

void Grammar::write_joins() {
  int round = 0;
  for (int segment = random.between(1, 3); segment > 0; --segment) {
    const int length = random.between(0, 3);
    std::vector<int> less;
    for (int rank = 0; rank < scenario.ranks; ++rank) less.push_back(random.between(0, length));
    write_programs(round, round + length, less);
    for (int rank = 0; rank < scenario.ranks; ++rank) program(rank).push_back({Step::Kind::Join});
    round += length;
  }
  write_programs(round, round + random.between(0, 2),
                 std::vector<int>(static_cast<std::size_t>(scenario.ranks)));
}

void Grammar::add_timeouts() {
  all_have_timeouts = one_in(2);
  const Time longest =
      microseconds(random.pick(std::vector<std::int64_t>{300, 10'000, 1'000'000, 30'000'000}));
  for (Program& steps : scenario.programs) {
    for (Step& step : steps) {
      if (step.kind != Step::Kind::Submit) continue;
      if (all_have_timeouts || one_in(6)) {
        step.time = Time{random.below(longest.count()) + 1'000};
      }
    }
  }
}

void Grammar::add_skips() {
  const bool everywhere = one_in(4);
  const int name = random.between(0, static_cast<int>(scenario.names.size()) - 1);
  for (int rank = 0; rank < scenario.ranks; ++rank) {
    if (!everywhere && !one_in(2)) continue;
    Program kept;
    for (const Step& step : program(rank)) {
      const bool is_skipped = step.kind == Step::Kind::Submit && step.name == name && one_in(2);
      if (!is_skipped) kept.push_back(step);
    }
    program(rank) = kept;
  }
  may_deadlock = true;
}

void Grammar::add_mismatches() {
  for (int count = random.between(1, 3); count > 0; --count) {
    const int name = random.between(0, static_cast<int>(scenario.names.size()) - 1);
    const auto& variants = scenario.names[static_cast<std::size_t>(name)];
    const int variant = random.between(0, static_cast<int>(variants.size()) - 1);
    const int use = random.between(0, 3);
    const bool everywhere = one_in(3);
    const int victim = random.between(0, scenario.ranks - 1);
    for (int rank = 0; rank < scenario.ranks; ++rank) {
      if (!everywhere && rank != victim) continue;
      int seen = 0;
      for (Step& step : program(rank)) {
        if (step.kind == Step::Kind::Submit && step.name == name && seen++ >= use) {
          step.variant = variant;
          if (!everywhere) break;
        }
      }
    }
  }
}

void Grammar::add_shutdowns() {
  const bool all_at_the_end = one_in(2);
  for (int rank = 0; rank < scenario.ranks; ++rank) {
    Program& steps = program(rank);
    if (all_at_the_end) {
      steps.push_back({Step::Kind::ShutDown});
    } else if (rank == scenario.ranks - 1 || one_in(4)) {
      steps.resize(static_cast<std::size_t>(random.between(0, static_cast<int>(steps.size()))));
      steps.push_back({Step::Kind::ShutDown});
      break;
    }
  }
}

void Grammar::add_faults() {
  for (int count = one_in(4) ? 2 : 1; count > 0; --count) {
    Fault fault;
    fault.rank = random.between(0, scenario.ranks - 1);
    const std::vector<Fault::Kind> kinds{Fault::Kind::Die, Fault::Kind::Die,
                                         Fault::Kind::DieWithMessage, Fault::Kind::Freeze};
    fault.kind = random.pick(kinds);
    const int steps = static_cast<int>(program(fault.rank).size());
    fault.after = random.between(1, one_in(3) ? 8 : 4 + 6 * steps);
    if (fault.kind == Fault::Kind::Freeze) {
      all_have_timeouts = true;
      for (Program& others : scenario.programs) {
        for (Step& step : others) {
          if (step.kind == Step::Kind::Submit && step.time == kNever) {
            step.time = microseconds(1'000'000 + random.below(1'000'000));
          }
        }
      }
    }
    scenario.faults.push_back(fault);
  }
  scenario.must_finish = false;
}

void Grammar::add_stragglers() {
  const Time longest =
      microseconds(random.pick(std::vector<std::int64_t>{50, 1'000, 20'000, 500'000}));
  const int often = random.between(2, 20);
  for (int rank = 0; rank < scenario.ranks; ++rank) {
    if (one_in(2)) continue;
    Program slow;
    for (const Step& step : program(rank)) {
      if (one_in(often)) {
        slow.push_back({Step::Kind::Compute, 0, 0, Time{random.below(longest.count())}});
      }
      slow.push_back(step);
    }
    program(rank) = slow;
  }
}

void Grammar::choose_delays() {
  Delays& delays = scenario.delays;
  const std::vector<std::int64_t> bounds{2, 20, 200, 2'000};
  delays.call = microseconds(one_in(3) ? random.pick(bounds) : 1);
  delays.wake = microseconds(random.pick(bounds));
  delays.transfer = microseconds(random.pick(bounds));
  delays.data = microseconds(random.pick(bounds));
  delays.detection = microseconds(random.pick(std::vector<std::int64_t>{20, 2'000, 50'000}));
  if (one_in(3)) {
    delays.long_one_in = random.between(5, 100);
    delays.longest = microseconds(random.pick(std::vector<std::int64_t>{500, 5'000, 30'000}));
  }
  scenario.patience = microseconds(
      random.pick(std::vector<std::int64_t>{0, 100, 5'000, 5'000, 10'000'000, 3'600'000'000}));
  scenario.lost_after = 4 * microseconds(1'000'000);
}

}  // namespace kolo::simulator
