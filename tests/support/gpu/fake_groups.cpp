#include "support/gpu/fake_groups.hpp"

#include <algorithm>
#include <utility>

namespace kolo::test {

std::size_t FakeGroups::make(int size) {
  groups_.push_back(std::make_unique<Group>());
  groups_.back()->members.resize(static_cast<std::size_t>(size));
  return groups_.size() - 1;
}

void FakeGroups::join(std::size_t group, int member, int rank) {
  groups_[group]->members[static_cast<std::size_t>(member)].rank = rank;
  order_.join(group, rank);
}

bool FakeGroups::is_complete(std::size_t group) const {
  const auto& members = groups_[group]->members;
  return std::none_of(members.begin(), members.end(),
                      [](const Member& member) { return member.rank < 0; });
}

void FakeGroups::put(std::size_t group, int member, FakeCall call, const Put& how) {
  Group& joined = *groups_[group];
  const auto index = static_cast<std::size_t>(member);
  Member& self = joined.members[index];
  const std::size_t sequence = self.launched;
  std::string name = describe(call) + ", operation " + std::to_string(sequence) +
                     " of communicator " + std::to_string(group);
  if (sequence == joined.operations.size()) {
    joined.operations.push_back(std::make_shared<Operation>());
    joined.operations.back()->arrivals.resize(joined.members.size());
  }
  const std::shared_ptr<Operation> operation = joined.operations[sequence];
  const std::size_t nth = launched_[static_cast<std::size_t>(self.rank)];
  const auto found = injected_failures_.find({self.rank, nth});
  const InjectedFailure* const injected =
      found == injected_failures_.end() ? nullptr : &found->second;
  streams_.put(self.rank, how.stream, name,
               [this, &joined, operation, index, injected](FakeStreams::Timeline timeline) {
                 return poll(joined, *operation, index, injected, timeline);
               });

  ++self.launched;
  ++launched_[static_cast<std::size_t>(self.rank)];
  order_.launch(group, self.rank);
  Arrival& arrival = operation->arrivals[index];
  arrival.state = Arrival::State::Launched;
  arrival.is_valid = how.is_valid;
  if (how.is_valid) arrival.accesses = accesses_of(call, member);
  arrival.accesses.name = std::move(name);
  arrival.accesses.order = streams_.next_order();
  arrival.call = std::move(call);
  if (joined.members.size() == 1 || !how.is_first) return;  // alone, it waits for no other rank
  std::map<std::size_t, Part>& latest = latest_[static_cast<std::size_t>(self.rank)];
  for (const auto& [other, part] : latest) {
    if (other != group) arrival.before.push_back(part);
  }
  latest[group] = {operation, index};
}

bool FakeGroups::has_pending(std::size_t group, int member) const {
  const auto index = static_cast<std::size_t>(member);
  const auto& operations = groups_[group]->operations;
  return std::any_of(operations.begin(), operations.end(),
                     [&](const auto& operation) { return is_pending(operation->arrivals[index]); });
}

bool FakeGroups::is_pending(const Arrival& arrival) {
  return !arrival.is_done && arrival.state != Arrival::State::Expected &&
         arrival.state != Arrival::State::Dropped;
}

void FakeGroups::drop(std::size_t group, int member) {
  for (const auto& operation : groups_[group]->operations) {
    if (!operation->is_done) {
      operation->arrivals[static_cast<std::size_t>(member)].state = Arrival::State::Dropped;
    }
  }
  order_.forget(group);
}

const std::string& FakeGroups::failure_of(std::size_t group, int member) const {
  return groups_[group]->members[static_cast<std::size_t>(member)].failure;
}

void FakeGroups::inject_failure(int rank, std::size_t nth, std::string failure) {
  injected_failures_[{rank, nth}] = {std::move(failure)};
}

bool FakeGroups::poll(Group& group, Operation& operation, std::size_t member,
                      const InjectedFailure* injected, FakeStreams::Timeline timeline) {
  Arrival& self = operation.arrivals[member];
  if (self.state == Arrival::State::Dropped) return true;
  if (injected != nullptr) {
    group.members[member].failure = injected->failure;
    return false;
  }
  HappensBefore& graph = streams_.graph();
  if (self.state == Arrival::State::Launched) {
    self.state = Arrival::State::AtHead;
    self.start = graph.clock(timeline);
    self.timeline = timeline;
    check_order(self);
  }
  if (!operation.is_done && !try_run(group, operation)) return false;
  graph.operate(timeline, self.accesses);
  for (const Arrival& arrival : operation.arrivals) graph.join(timeline, arrival.start);
  self.is_done = true;
  self.before.clear();  // breaks the cycle of references between operations
  return true;
}

void FakeGroups::check_order(const Arrival& arrival) {
  const Early self{arrival.accesses.name, arrival.start};
  for (const Part& part : arrival.before) {
    Arrival& earlier = part.operation->arrivals[part.member];
    if (earlier.state == Arrival::State::Launched) earlier.early.push_back(self);
    if (earlier.state == Arrival::State::AtHead) check_order(earlier, self);
  }
  for (const Early& later : arrival.early) check_order(arrival, later);
}

void FakeGroups::check_order(const Arrival& earlier, const Early& later) {
  const FakeStreams::Timeline timeline = earlier.timeline;
  if (later.start.at(timeline) >= earlier.start.at(timeline)) return;
  streams_.graph().report("device order: '" + later.name + "' may start before '" +
                          earlier.accesses.name + "'");
}

bool FakeGroups::try_run(Group& group, Operation& operation) {
  const bool is_next = group.operations[group.done].get() == &operation;
  const bool are_at_head =
      std::all_of(operation.arrivals.begin(), operation.arrivals.end(),
                  [](const Arrival& arrival) { return arrival.state == Arrival::State::AtHead; });
  if (!is_next || !are_at_head) return false;
  std::vector<FakeCall> calls;
  for (const Arrival& arrival : operation.arrivals) calls.push_back(arrival.call);
  const bool are_valid = std::all_of(operation.arrivals.begin(), operation.arrivals.end(),
                                     [](const Arrival& arrival) { return arrival.is_valid; });
  std::string hazard = find_disagreement(calls);
  if (hazard.empty() && are_valid) carry_out(calls);
  if (!hazard.empty()) streams_.graph().report(std::move(hazard));
  operation.is_done = true;
  ++group.done;
  return true;
}

}  // namespace kolo::test
