// Ranks that join a process set while the others continue.

#include <algorithm>

#include "programs/program_builder.hpp"
#include "programs/random_variant.hpp"

namespace kolo::programs {

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

}  // namespace kolo::programs
