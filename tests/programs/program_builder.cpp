#include "programs/program_builder.hpp"

#include <algorithm>
#include <numeric>

#include "programs/random_operation.hpp"
#include "programs/random_settings.hpp"
#include "programs/random_variant.hpp"

namespace kolo::programs {
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

}  // namespace kolo::programs
