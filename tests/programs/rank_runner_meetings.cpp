// Collective calls of a program's ranks between rounds.
#include <algorithm>

#include "programs/rank_runner.hpp"

namespace kolo::programs {
namespace {

/// Leftovers end with the set or the Runtime.
bool is_leftover(const Operation& operation) { return operation.error == ErrorKind::Shutdown; }

}  // namespace

void RankRunner::meet(const Meeting& meeting) {
  switch (meeting.kind) {
    case Meeting::Kind::AddSet: add_set(meeting); break;
    case Meeting::Kind::RemoveSet: remove_set(meeting); break;
    case Meeting::Kind::MakeBuffer: make_buffer(meeting); break;
    case Meeting::Kind::DropBuffer: buffers_.erase(meeting.buffer); break;
    case Meeting::Kind::Join: join(meeting); break;
    case Meeting::Kind::EndJoins:
      if (joiner_.joinable()) joiner_.join();
      break;
    case Meeting::Kind::Shutdown: shut_down(); break;
  }
}

void RankRunner::add_set(const Meeting& meeting) {
  std::vector<int> ranks = rank_ == meeting.deviant ? meeting.deviant_ranks : meeting.ranks;
  if (rank_ % 2 == 1) std::reverse(ranks.begin(), ranks.end());  // any order is valid
  expect_end("add_process_set", meeting.error, [&] {
    ProcessSet& set = runtime_.add_process_set(ranks);
    sets_.push_back(&set);
    const int place = set.included() ? static_cast<int>(member_of(rank_, meeting.ranks)) : -1;
    if (set.number() != meeting.set || set.ranks() != meeting.ranks ||
        set.included() != is_among(rank_, meeting.ranks) || set.rank() != place) {
      fail("add_process_set made " + set.name() + ", number " + std::to_string(set.number()));
    }
  });
}

void RankRunner::remove_set(const Meeting& meeting) {
  settle([&](const Operation& operation) {
    return operation.set == meeting.set && !is_leftover(operation);
  });
  expect_end("remove_process_set", meeting.error,
             [&] { runtime_.remove_process_set(set(meeting.set)); });
}

void RankRunner::make_buffer(const Meeting& meeting) {
  if (!is_member(meeting.set)) return;
  const bool is_deviant = rank_ == meeting.deviant;
  expect_end("SharedBuffer", meeting.error, [&] {
    const SharedBuffer buffer(is_deviant ? meeting.deviant_bytes : meeting.size_bytes,
                              {.process_set = &set(meeting.set)});
    const auto* const bytes = buffer.data();
    if (std::any_of(bytes, bytes + buffer.size_bytes(),
                    [](std::byte byte) { return byte != std::byte{0}; })) {
      fail("a new SharedBuffer is not zero");
    }
    buffers_.emplace(meeting.buffer, buffer);
  });
}

void RankRunner::join(const Meeting& meeting) {
  if (!is_among(rank_, meeting.ranks)) return;
  if (meeting.is_settled) {
    settle([&](const Operation& operation) { return operation.set == meeting.set; });
  }
  const auto act = [this, &meeting] {
    expect_end("join", meeting.error, [&] {
      const int last = kolo::join(&set(meeting.set));
      last_joined_[static_cast<std::size_t>(meeting.joining)] = last;
      if (!is_among(last, meeting.may_be_last)) {
        fail("join: rank " + std::to_string(last) + " cannot have been the last");
      }
    });
  };
  if (meeting.on_thread) {
    joiner_ = std::thread(act);
  } else {
    act();
  }
}

void RankRunner::shut_down() {
  settle([](const Operation& operation) { return !is_leftover(operation); });
  runtime_.shutdown();
}

}  // namespace kolo::programs
