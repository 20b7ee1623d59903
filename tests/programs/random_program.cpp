#include "programs/random_program.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "kolo/algorithm.hpp"
#include "ops/registry.hpp"
#include "programs/program.hpp"
#include "programs/random_operation.hpp"
#include "support/random.hpp"

namespace kolo::programs {

namespace {

using simulator::Random;
using namespace std::chrono_literals;

/// For each collective a registered algorithm, which runs wherever it is supported, or none.
std::string random_algorithms(Random& random) {
  std::map<Collective, std::vector<std::string>> entries;
  const ops::Registry registry;
  for (const Algorithm& algorithm : registry.algorithms()) {
    entries[algorithm.collective].push_back(std::string(name_of(algorithm.collective)) + ":" +
                                            std::string(algorithm.name));
  }
  std::string text;
  for (const auto& [collective, choices] : entries) {
    if (random.one_in(2)) text += (text.empty() ? "" : ",") + random.pick(choices);
  }
  return text;
}

void choose_knobs(Config& config, Random& random) {
  config.log_level = "error";
  config.timeout = 60s;
  config.lost_after = 30s;
  config.stall_warn = random.one_in(6) ? Config::Duration(1ms) : Config::Duration(60s);
  config.fusion = !random.one_in(4);
  config.fusion_bytes = random.pick(std::vector<std::size_t>{0, 256, 4096, 512 << 10});
  config.shared_memory = !random.one_in(4);
  config.tuning.segment_bytes = random.pick(std::vector<std::size_t>{64, 256, 4096, 64 << 10});
  config.tuning.staging_bytes =
      random.pick(std::vector<std::size_t>{4096, 4096, 16 << 10, 64 << 10});
  config.tuning.patience = random.pick(std::vector<Config::Duration>{0s, 50us, 50us, 1ms, 5ms});
  config.tuning.spin = random.pick(std::vector<Config::Duration>{0s, 20us});
  config.tuning.table_capacity = random.pick(std::vector<std::size_t>{1, 4, 8, 16, 2048, 2048});
  config.tuning.tree_width = random.pick(std::vector<int>{1, 2, 8});
  config.algorithm = random_algorithms(random);
}

void choose_network(Program& program, Random& random) {
  test::FakeOptions& network = program.network;
  network.seed = program.seed;
  network.nodes = random.one_in(3) ? random.between(2, std::max(2, program.size)) : 1;
  network.nodes = std::min(network.nodes, program.size);
  network.longest_delay = random.pick(std::vector<std::chrono::microseconds>{0us, 0us, 0us, 100us});
  network.rendezvous = random.one_in(3);
  network.has_shared_memory = !random.one_in(8);
  program.config.fake_nodes = network.nodes > 1 ? network.nodes : 0;
}

}  // namespace

/// At least `least` random ranks of the program, in ascending order.
std::vector<int> random_ranks(const Program& program, int least, Random& random) {
  std::vector<int> ranks = program.sets[0];
  random.shuffle(ranks);
  ranks.resize(
      static_cast<std::size_t>(random.between(std::min(least, program.size), program.size)));
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

/// Chooses the configuration of the ranks: settings, network, and initial process sets.
void choose_settings(Program& program, Random& random) {
  choose_knobs(program.config, random);
  choose_network(program, random);
  std::vector<int> everybody(static_cast<std::size_t>(program.size));
  std::iota(everybody.begin(), everybody.end(), 0);
  program.sets = {everybody};
  program.static_sets = random.one_in(2) ? random.between(1, 2) : 0;
  for (int i = 0; i < program.static_sets; ++i) {
    program.sets.push_back(random_ranks(program, 1, random));
  }
}

/// Builds a random program step by step. After each step all sets work.
class ProgramBuilder {
 public:
  ProgramBuilder(std::uint64_t seed, int size);

  simulator::Random& random() { return random_; }
  int operation_count() const { return static_cast<int>(program_.operations.size()); }
  Program take() { return std::move(program_); }

  /// Repeats the same few rounds, like a training loop.
  void add_loop();
  /// One round in which ranks disagree about some operations, while others succeed.
  void add_disagreements();
  /// Ranks with fewer rounds than others join.
  void add_join();
  /// A deadline passes because one rank is late; its own submission then fails in the same way.
  void add_expiry();
  void add_set();
  /// Removes a set while an operation on it is pending.
  void remove_set();
  /// Creates or releases a shared buffer.
  void add_buffer();
  /// Shuts down while operations are pending.
  void add_end();

 private:
  struct Buffer {
    int number = 0;
    int set = 0;
    std::size_t size_bytes = 0;
  };
  struct Joining {
    int set = 0;
    std::vector<int> rounds;  // by member
    int last_round = 0;
    bool on_thread = false;
    bool is_settled = true;
  };

  Round& new_round() { return program_.rounds.emplace_back(); }
  /// Numbers the operation and adds it to the last round.
  Operation& submit(Operation operation);

  int random_set(int min_members = 1);
  Operation random_operation(int set);
  std::vector<Operation> random_operations(int count, std::vector<std::string>& names);
  std::vector<std::string> shuffled_names();
  bool is_place_taken(const Operation& operation) const;
  void add_other_operations(std::vector<std::string>& names, int most);

  void add_round_of(const Joining& joining, int round, std::vector<std::string>& names);
  void add_operation_of(const Joining& joining, int round, std::vector<std::string>& names);
  void adapt_to_joined(Operation& operation);
  void add_leftover(int set, const std::string& name, bool is_called_twice);
  void refuse(int set, int rank, ErrorKind error);

  simulator::Random random_;
  Program program_;
  std::vector<int> open_sets_;
  std::vector<int> closed_sets_;
  std::vector<Buffer> buffers_;
  int buffer_count_ = 0;
};

namespace {

/// Whether two operations use the same part of a shared buffer.
bool share_place(const Operation& a, const Operation& b) {
  return a.buffer >= 0 && a.buffer == b.buffer && a.slot == b.slot;
}

}  // namespace

ProgramBuilder::ProgramBuilder(std::uint64_t seed, int size)
    : random_(seed * 8 + static_cast<std::uint64_t>(size)) {
  program_.seed = seed;
  program_.size = size;
  choose_settings(program_, random_);
  open_sets_.resize(program_.sets.size());
  std::iota(open_sets_.begin(), open_sets_.end(), 0);
}

Operation& ProgramBuilder::submit(Operation operation) {
  operation.id = operation_count();
  program_.rounds.back().operations.push_back(operation.id);
  return program_.operations.emplace_back(std::move(operation));
}

/// A random set; most often the world.
int ProgramBuilder::random_set(int min_members) {
  const int set = random_.one_in(2) ? 0 : random_.pick(open_sets_);
  const int members = static_cast<int>(program_.sets[static_cast<std::size_t>(set)].size());
  return members >= min_members ? set : 0;
}

Operation ProgramBuilder::random_operation(int set) {
  std::vector<Buffer> here;
  std::copy_if(buffers_.begin(), buffers_.end(), std::back_inserter(here),
               [&](const Buffer& buffer) { return buffer.set == set; });
  if (!here.empty() && random_.one_in(3)) {
    const Buffer& buffer = random_.pick(here);
    return random_operation_in_buffer(program_, set, buffer.number, buffer.size_bytes, random_);
  }
  return programs::random_operation(program_, set, random_);
}

std::vector<std::string> ProgramBuilder::shuffled_names() {
  std::vector<std::string> names;
  for (int i = 0; i < 24; ++i) names.push_back(std::string("n").append(std::to_string(i)));
  names[3] = "model.encoder.layers.11.attention.self.query.weight, and longer than most";
  random_.shuffle(names);
  return names;
}

/// Operations that can be in flight simultaneously.
std::vector<Operation> ProgramBuilder::random_operations(int count,
                                                         std::vector<std::string>& names) {
  std::vector<Operation> operations;
  for (int i = 0; i < count; ++i) {
    Operation operation = random_operation(random_set());
    const auto shares_place = [&](const Operation& other) { return share_place(operation, other); };
    if (std::any_of(operations.begin(), operations.end(), shares_place)) continue;
    operation.name = names.back();
    names.pop_back();
    if (random_.one_in(8)) operation.name.clear();
    operations.push_back(std::move(operation));
  }
  return operations;
}

/// Whether another operation of this round uses the same part of a shared buffer.
bool ProgramBuilder::is_place_taken(const Operation& operation) const {
  const std::vector<int>& round = program_.rounds.back().operations;
  return std::any_of(round.begin(), round.end(), [&](int id) {
    return share_place(operation, program_.operations[static_cast<std::size_t>(id)]);
  });
}

void ProgramBuilder::add_other_operations(std::vector<std::string>& names, int most) {
  for (Operation& operation : random_operations(random_.between(0, most), names)) {
    if (!is_place_taken(operation)) submit(std::move(operation));
  }
}

void ProgramBuilder::add_loop() {
  std::vector<std::string> names = shuffled_names();
  std::vector<std::vector<Operation>> body;
  for (int i = random_.between(1, 3); i > 0; --i) {
    body.push_back(random_operations(random_.between(1, 5), names));
  }
  const bool is_steady = random_.one_in(3);
  for (int i = random_.between(1, 6); i > 0; --i) {
    for (const std::vector<Operation>& round : body) {
      new_round();
      for (const Operation& of_body : round) {
        if (!is_steady && random_.one_in(10)) continue;
        Operation& operation = submit(of_body);
        choose_rows(program_, operation, random_);
        if (!is_steady && random_.one_in(14)) make_disagree(program_, operation, random_);
      }
    }
  }
}

void ProgramBuilder::add_disagreements() {
  std::vector<std::string> names = shuffled_names();
  new_round();
  for (Operation& operation : random_operations(random_.between(1, 4), names)) {
    make_disagree(program_, submit(std::move(operation)), random_);
  }
  add_other_operations(names, 3);
}

// --- deadlines ---

void ProgramBuilder::add_expiry() {
  const int set = random_set(2);
  std::vector<std::string> names = shuffled_names();
  Operation expiring = random_operation(set);
  expiring.name = names.back();
  names.pop_back();
  expiring.buffer = -1;
  expiring.error = ErrorKind::Timeout;
  expiring.is_settled = true;
  const int late = random_.pick(expiring.submitters);
  Operation late_use = expiring;
  late_use.submitters = {late};
  std::erase(expiring.submitters, late);
  expiring.timeout = std::chrono::milliseconds(random_.between(1, 4));

  new_round();
  submit(std::move(expiring));
  add_other_operations(names, 2);
  new_round();  // now the late rank knows that the deadline has passed on the others
  Operation barrier = programs::random_operation(program_, set, Collective::Barrier, random_);
  barrier.name = names.back();
  names.pop_back();
  barrier.is_settled = true;
  submit(std::move(barrier));
  new_round();
  submit(std::move(late_use));
  add_other_operations(names, 2);
}

// --- process sets and shared buffers ---

void ProgramBuilder::add_set() {
  std::vector<std::string> names = shuffled_names();
  new_round();
  add_other_operations(names, 3);
  BlockingCall call{.kind = BlockingCall::Kind::AddSet};
  call.set = static_cast<int>(program_.sets.size());
  call.ranks = random_ranks(program_, 1, random_);
  if (random_.one_in(4)) {
    call.outlier = random_.between(0, program_.size - 1);
    call.outlier_ranks = random_ranks(program_, 1, random_);
    const bool is_mistake = random_.one_in(2) || call.outlier_ranks == call.ranks;
    if (is_mistake) {
      call.outlier_ranks =
          random_.pick(std::vector<std::vector<int>>{{}, {0, 0}, {program_.size}, {-1, 0}});
    }
    call.error = is_mistake ? ErrorKind::InvalidArgument : ErrorKind::Mismatch;
  } else {
    open_sets_.push_back(call.set);
    program_.sets.push_back(call.ranks);
  }
  program_.rounds.back().blocking_call = std::move(call);
}

void ProgramBuilder::remove_set() {
  std::vector<std::string> names = shuffled_names();
  BlockingCall call{.kind = BlockingCall::Kind::RemoveSet};
  if (open_sets_.size() == 1 || random_.one_in(5)) {  // the world, or a set that is already closed
    if (!closed_sets_.empty() && random_.one_in(2)) call.set = random_.pick(closed_sets_);
    new_round();
    call.error = ErrorKind::InvalidArgument;
    program_.rounds.back().blocking_call = std::move(call);
    return;
  }
  do {
    call.set = random_.pick(open_sets_);
  } while (call.set == 0);
  std::erase(open_sets_, call.set);
  closed_sets_.push_back(call.set);
  std::erase_if(buffers_, [&](const Buffer& buffer) { return buffer.set == call.set; });
  const int set = call.set;
  new_round().blocking_call = std::move(call);
  if (random_.one_in(2)) add_leftover(set, names.back(), random_.one_in(2));
  names.pop_back();
  add_other_operations(names, 2);
  new_round();
  for (int rank = 0; rank < program_.size; ++rank) {
    const bool is_member = is_among(rank, program_.sets[static_cast<std::size_t>(set)]);
    if (random_.one_in(3)) {
      refuse(set, rank, is_member ? ErrorKind::Shutdown : ErrorKind::InvalidArgument);
    }
  }
}

/// Some members submit an operation that the others never submit. Meanwhile a second call under its
/// name is rejected.
void ProgramBuilder::add_leftover(int set, const std::string& name, bool is_called_twice) {
  Operation leftover = random_operation(set);
  if (leftover.submitters.size() < 2) return;
  leftover.name = name;
  leftover.buffer = -1;
  leftover.is_settled = true;
  leftover.error = ErrorKind::Shutdown;
  random_.shuffle(leftover.submitters);
  leftover.submitters.resize(static_cast<std::size_t>(
      random_.between(1, static_cast<int>(leftover.submitters.size()) - 1)));
  std::sort(leftover.submitters.begin(), leftover.submitters.end());
  const int rank = leftover.submitters.front();
  submit(std::move(leftover));
  if (!is_called_twice) return;
  refuse(set, rank, ErrorKind::InvalidArgument);
  program_.operations.back().name = name;
}

/// A call that throws immediately, on this rank alone.
void ProgramBuilder::refuse(int set, int rank, ErrorKind error) {
  Operation operation = programs::random_operation(program_, set, Collective::Barrier, random_);
  operation.name = "refused";
  operation.submitters = {rank};
  operation.is_refused = true;
  operation.error = error;
  submit(std::move(operation));
}

void ProgramBuilder::add_buffer() {
  BlockingCall call{.kind = BlockingCall::Kind::MakeBuffer};
  if (buffers_.size() > 1) {
    call.kind = BlockingCall::Kind::DropBuffer;
    call.buffer = buffers_.front().number;
    buffers_.erase(buffers_.begin());
    new_round().blocking_call = std::move(call);
    return;
  }
  call.set = random_set();
  call.buffer = buffer_count_++;
  call.size_bytes = random_.pick(std::vector<std::size_t>{256, 1000, 4096, 4096, 20'000});
  const std::vector<int>& members = program_.sets[static_cast<std::size_t>(call.set)];
  if (members.size() > 1 && random_.one_in(5)) {
    call.outlier = random_.pick(members);
    call.outlier_bytes = call.size_bytes + 64;
    call.error = ErrorKind::Mismatch;
  } else {
    buffers_.push_back({call.buffer, call.set, call.size_bytes});
  }
  new_round().blocking_call = std::move(call);
}

void ProgramBuilder::add_end() {
  new_round().blocking_call = BlockingCall{.kind = BlockingCall::Kind::Shutdown};
  for (const int set : open_sets_) {
    if (random_.one_in(4)) add_leftover(set, "left over", false);
  }
  new_round();
  for (const int set : open_sets_) {
    const int rank = random_.pick(program_.sets[static_cast<std::size_t>(set)]);
    if (random_.one_in(2)) refuse(set, rank, ErrorKind::Shutdown);
  }
}

// --- ranks that join a process set while the others continue ---

void ProgramBuilder::add_join() {
  Joining joining;
  joining.set = random_set(2);
  const std::size_t members = program_.sets[static_cast<std::size_t>(joining.set)].size();
  joining.last_round = random_.between(1, 4);
  for (std::size_t i = 0; i < members; ++i) {
    joining.rounds.push_back(random_.between(0, joining.last_round));
  }
  joining.rounds[static_cast<std::size_t>(random_.below(static_cast<std::int64_t>(members)))] =
      joining.last_round;
  joining.on_thread = random_.one_in(2);
  joining.is_settled = !random_.one_in(3);
  std::vector<std::string> names = shuffled_names();
  for (int round = 0; round <= joining.last_round; ++round) add_round_of(joining, round, names);
  const Round& last = program_.rounds[program_.rounds.size() - 2];
  // Ranks that waited for the last round's operations have seen the others join.
  const bool others_are_seen =
      joining.is_settled &&
      std::any_of(last.operations.begin(), last.operations.end(), [&](int id) {
        const Operation& operation = program_.operations[static_cast<std::size_t>(id)];
        return operation.set == joining.set && !operation.error;
      });
  for (std::size_t i = 0; i < members; ++i) {
    if (others_are_seen && joining.rounds[i] < joining.last_round) continue;
    for (Round& round : program_.rounds) {
      if (!round.blocking_call || round.blocking_call->joining != program_.joinings) continue;
      round.blocking_call->may_be_last.push_back(
          program_.sets[static_cast<std::size_t>(joining.set)][i]);
    }
  }
  if (joining.on_thread) {
    new_round().blocking_call = BlockingCall{.kind = BlockingCall::Kind::EndJoins};
  }
  ++program_.joinings;
}

void ProgramBuilder::add_round_of(const Joining& joining, int round,
                                  std::vector<std::string>& names) {
  const std::vector<int>& members = program_.sets[static_cast<std::size_t>(joining.set)];
  new_round();
  if (round < joining.last_round) {
    const int count = random_.between(round + 1 == joining.last_round ? 1 : 0, 3);
    for (int i = 0; i < count; ++i) add_operation_of(joining, round, names);
  }
  BlockingCall call{.kind = BlockingCall::Kind::Join};
  call.set = joining.set;
  call.joining = program_.joinings;
  call.on_thread = joining.on_thread;
  call.is_settled = joining.is_settled;
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (joining.rounds[i] == round) call.ranks.push_back(members[i]);
  }
  if (!call.ranks.empty()) program_.rounds.back().blocking_call = std::move(call);
  if (!joining.on_thread) return;
  for (Operation& operation : random_operations(random_.between(0, 2), names)) {
    if (operation.set != joining.set) submit(std::move(operation));
  }
}

void ProgramBuilder::add_operation_of(const Joining& joining, int round,
                                      std::vector<std::string>& names) {
  Operation operation = random_operation(joining.set);
  if (is_place_taken(operation)) return;
  const std::vector<int> members = operation.submitters;
  operation.submitters.clear();
  for (std::size_t i = 0; i < members.size(); ++i) {
    (joining.rounds[i] > round ? operation.submitters : operation.joined).push_back(members[i]);
  }
  if (!random_.one_in(6)) {  // unnamed calls restart their numbers after the join
    operation.name = names.back();
    names.pop_back();
  }
  if (!operation.joined.empty()) adapt_to_joined(operation);
  Operation& submitted = submit(std::move(operation));
  if (!submitted.error && random_.one_in(10)) make_disagree(program_, submitted, random_);
}

/// Joined ranks get no rows and cannot be roots, or the operation fails.
void ProgramBuilder::adapt_to_joined(Operation& operation) {
  const bool is_invalid = random_.one_in(4);
  if (operation.collective == Collective::Broadcast) {
    operation.root = random_.pick(is_invalid ? operation.joined : operation.submitters);
    if (is_invalid) operation.error = ErrorKind::InvalidArgument;
  }
  if (operation.collective != Collective::AllToAll) return;
  operation.equal_splits = false;
  const std::vector<int>& members = program_.members(operation);
  bool sends = false;
  for (const int rank : operation.submitters) {
    for (const int joined : operation.joined) {
      std::int64_t& rows = operation.split[member_of(rank, members)][member_of(joined, members)];
      if (!is_invalid) rows = 0;
      sends |= rows > 0;
    }
  }
  if (sends) operation.error = ErrorKind::InvalidArgument;
}

namespace {

constexpr int kMinOperations = 44;
constexpr std::uint64_t kSizes = 3;

}  // namespace

Program random_program(std::uint64_t seed, int size) {
  ProgramBuilder builder(seed, size);
  while (builder.operation_count() < kMinOperations) {
    switch (builder.random().between(0, 11)) {
      case 0: builder.add_set(); break;
      case 1: builder.remove_set(); break;
      case 2: builder.add_buffer(); break;
      case 3: builder.add_join(); break;
      case 4: builder.add_expiry(); break;
      case 5: builder.add_disagreements(); break;
      default: builder.add_loop(); break;
    }
  }
  builder.add_end();
  return builder.take();
}

int random_size(std::uint64_t seed) { return 2 + static_cast<int>(seed % kSizes); }

}  // namespace kolo::programs
