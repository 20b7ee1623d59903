// Collective calls of a program's ranks between rounds.
#include <algorithm>

#include "programs/rank_runner.hpp"

namespace kolo::programs {
namespace {

/// Leftovers end with the set or the Runtime.
bool is_leftover(const Operation& operation) { return operation.error == ErrorKind::Shutdown; }

}  // namespace

void RankRunner::run_blocking_call(const BlockingCall& call) {
  switch (call.kind) {
    case BlockingCall::Kind::AddSet: add_set(call); break;
    case BlockingCall::Kind::RemoveSet: remove_set(call); break;
    case BlockingCall::Kind::MakeBuffer: make_buffer(call); break;
    case BlockingCall::Kind::DropBuffer: buffers_.erase(call.buffer); break;
    case BlockingCall::Kind::Join: join(call); break;
    case BlockingCall::Kind::EndJoins:
      if (joiner_.joinable()) joiner_.join();
      break;
    case BlockingCall::Kind::Shutdown: shut_down(); break;
  }
}

void RankRunner::add_set(const BlockingCall& call) {
  std::vector<int> ranks = rank_ == call.outlier ? call.outlier_ranks : call.ranks;
  if (rank_ % 2 == 1) std::reverse(ranks.begin(), ranks.end());  // any order is valid
  expect_end("add_process_set", call.error, [&] {
    ProcessSet& set = runtime_.add_process_set(ranks);
    sets_.push_back(&set);
    const int place = set.included() ? static_cast<int>(member_of(rank_, call.ranks)) : -1;
    if (set.number() != call.set || set.ranks() != call.ranks ||
        set.included() != is_among(rank_, call.ranks) || set.rank() != place) {
      fail("add_process_set made " + set.name() + ", number " + std::to_string(set.number()));
    }
  });
}

void RankRunner::remove_set(const BlockingCall& call) {
  settle([&](const Operation& operation) {
    return operation.set == call.set && !is_leftover(operation);
  });
  expect_end("remove_process_set", call.error, [&] { runtime_.remove_process_set(set(call.set)); });
}

void RankRunner::make_buffer(const BlockingCall& call) {
  if (!is_member(call.set)) return;
  const bool is_outlier = rank_ == call.outlier;
  expect_end("SharedBuffer", call.error, [&] {
    const SharedBuffer buffer(is_outlier ? call.outlier_bytes : call.size_bytes,
                              {.process_set = &set(call.set)});
    const auto* const bytes = buffer.data();
    if (std::any_of(bytes, bytes + buffer.size_bytes(),
                    [](std::byte byte) { return byte != std::byte{0}; })) {
      fail("a new SharedBuffer is not zero");
    }
    buffers_.emplace(call.buffer, buffer);
  });
}

void RankRunner::join(const BlockingCall& call) {
  if (!is_among(rank_, call.ranks)) return;
  if (call.is_settled) {
    settle([&](const Operation& operation) { return operation.set == call.set; });
  }
  const auto act = [this, &call] {
    expect_end("join", call.error, [&] {
      const int last = kolo::join(&set(call.set));
      last_joined_[static_cast<std::size_t>(call.joining)] = last;
      if (!is_among(last, call.may_be_last)) {
        fail("join: rank " + std::to_string(last) + " cannot have been the last");
      }
    });
  };
  if (call.on_thread) {
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
