#include "runtime/device/launch_order.hpp"

#include <span>
#include <utility>

#include "base/intentional_leak.hpp"
#include "runtime/data/numbers.hpp"

namespace kolo::runtime {
namespace {

constexpr int kQuestion = 0;
constexpr int kAnswer = 1;

// A probe costs MPI a microsecond, and every lane would make one in every progress step.
constexpr std::chrono::microseconds kLookInterval{50};

constexpr std::chrono::seconds kDemand{1};

/// Awaitable: a transfer of a communicator that several threads use.
struct Locked {
  std::mutex& lock;
  Transfer& transfer;

  bool ready() {
    const std::lock_guard guard(lock);
    return transfer.ready();
  }
};

template <class Look>
struct When {
  Look look;

  bool ready() { return look(); }
};

}  // namespace

LaunchOrder::~LaunchOrder() {
  for (Reply& reply : replies_) leak_intentionally(std::move(reply.numbers));
}

Task LaunchOrder::enter(const DataPath& path, std::uint64_t& ticket) {
  // If ranks took tickets before all had arrived, a late rank would hold up all later tickets.
  const Numbers here(1);
  Numbers all_here;
  co_await gather_numbers(path, here, all_here);
  Numbers numbers(path.world_ranks.size() + 1);
  if (path.communicator->rank() == 0) co_await ask(path.world_ranks, numbers);
  co_await broadcast_numbers(path, numbers);
  ticket = numbers.back();
  const std::uint64_t previous = numbers[static_cast<std::size_t>(path.communicator->rank())];
  const auto is_turn = [this, previous] { return is_turn_after(previous); };
  co_await When<decltype(is_turn)>{is_turn};
}

/// A rank receives answers in the order of its questions, whichever of its lanes asked.
Task LaunchOrder::ask(const std::vector<int>& members, Numbers& answer) {
  const Numbers question(members.begin(), members.end());
  Transfer sent;
  Transfer received;
  {
    const std::lock_guard guard(lock_);
    sent = world_->send(std::as_bytes(std::span(question)), 0, kQuestion);
    received = world_->receive(std::as_writable_bytes(std::span(answer)), 0, kAnswer);
  }
  co_await Locked{lock_, sent};
  co_await Locked{lock_, received};
}

bool LaunchOrder::is_turn_after(std::uint64_t previous) {
  const std::lock_guard guard(lock_);
  return is_given_up_ || last_left_ == previous;
}

void LaunchOrder::leave(std::uint64_t ticket) {
  const std::lock_guard guard(lock_);
  last_left_ = ticket;
}

std::shared_ptr<CUevent_st> LaunchOrder::last_launched() {
  const std::lock_guard guard(lock_);
  return last_launched_;
}

void LaunchOrder::set_last_launched(std::shared_ptr<CUevent_st> done) {
  const std::lock_guard guard(lock_);
  last_launched_.swap(done);
}

void LaunchOrder::give_up() {
  const std::lock_guard guard(lock_);
  is_given_up_ = true;
}

void LaunchOrder::serve() {
  if (!has_questions_ || world_->rank() != 0) return;
  const auto now = Clock::now();
  if (now < next_look_.load()) return;
  const std::unique_lock guard(lock_, std::try_to_lock);
  if (!guard.owns_lock()) return;
  next_look_ = now + kLookInterval;
  while (!replies_.empty() && replies_.front().transfer.ready()) replies_.pop_front();
  while (has_question()) {
    Reply& reply = replies_.emplace_back();
    reply.numbers = answer_to(question_->members);
    reply.transfer =
        world_->send(std::as_bytes(std::span(reply.numbers)), question_->source, kAnswer);
    question_.reset();
    in_demand_until_ = now + kDemand;
  }
}

/// Perhaps only the announcement of a long message has arrived, and its sender may die: the receive
/// continues in the next call.
bool LaunchOrder::has_question() {
  if (!question_) {
    const auto envelope = world_->probe(kQuestion);
    if (!envelope) return false;
    question_.emplace(
        Question{envelope->source, Numbers(envelope->size_bytes / sizeof(std::uint64_t)), {}});
    question_->transfer = world_->receive(std::as_writable_bytes(std::span(question_->members)),
                                          envelope->source, kQuestion);
  }
  return question_->transfer.ready();
}

/// For each member, the batch after which it may launch this one; then the ticket.
LaunchOrder::Numbers LaunchOrder::answer_to(const Numbers& members) {
  Numbers numbers;
  ++last_ticket_;
  for (const std::uint64_t member : members) {
    numbers.push_back(std::exchange(last_of_rank_[member], last_ticket_));
  }
  numbers.push_back(last_ticket_);
  return numbers;
}

}  // namespace kolo::runtime
