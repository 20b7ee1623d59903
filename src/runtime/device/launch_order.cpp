#include "runtime/device/launch_order.hpp"

#include <exception>
#include <span>
#include <utility>

#include "base/intentional_leak.hpp"
#include "runtime/data/data_path.hpp"

namespace kolo::runtime {
namespace {

constexpr int kQuestion = 0;  // without members: the last one of its rank
constexpr int kAnswer = 1;
constexpr int kClosing = 2;  // from rank 0, empty

// A probe costs MPI a microsecond, and every engine would make one in every progress step.
constexpr std::chrono::nanoseconds kQuestionInterval = std::chrono::microseconds(50);
constexpr std::chrono::nanoseconds kClosingInterval = std::chrono::milliseconds(10);

constexpr std::chrono::seconds kDemand{1};

// Ranks usually shut down at the same time. One that has shut down receives nothing any more.
constexpr std::chrono::milliseconds kTimeToClose{50};

/// Awaitable: until `look` is true.
template <class Look>
struct When {
  Look look;

  bool ready() { return look(); }
};

}  // namespace

LaunchOrder::~LaunchOrder() {
  for (Message& message : sending_) leak_intentionally(std::move(message.numbers));
}

Task LaunchOrder::enter(const DataPath& path, Ticket& ticket) {
  // If ranks took tickets before all had arrived, a late rank would hold up all later tickets.
  const Numbers here(1);
  Numbers all_here;
  co_await gather_numbers(path, here, all_here);
  Numbers numbers(path.world_ranks.size() + 1);
  if (path.communicator->rank() == 0) co_await ask(path.world_ranks, numbers);
  co_await broadcast_numbers(path, numbers);
  ticket = {.number = numbers.back()};
  if (ticket.number == 0) {
    ticket.is_world_lost = numbers.front() != 0;
    co_return;
  }
  const std::uint64_t previous = numbers[static_cast<std::size_t>(path.communicator->rank())];
  const auto is_turn = [this, previous] { return is_turn_after(previous); };
  co_await When<decltype(is_turn)>{is_turn};
}

/// The answer stays zero if there is none, but for its first number, which says whether the world
/// is lost. A rank receives answers in the order of its questions, whichever of its engines asked.
Task LaunchOrder::ask(const std::vector<int>& members, Numbers& answer) {
  Message question{{members.begin(), members.end()}, {}};
  Message reply{answer, {}};
  bool is_answered = false;
  const auto has_ended = [&] {
    const Lock guard(lock_);
    is_answered = question.transfer.ready() && reply.transfer.ready();
    return is_answered || world_loss_.has_value();
  };
  {
    const Lock guard(lock_);
    if (!can_ask()) {
      answer.front() = world_loss_.has_value();
      co_return;
    }
    question.transfer = world_->send(std::as_bytes(std::span(question.numbers)), 0, kQuestion);
    reply.transfer = world_->receive(std::as_writable_bytes(std::span(reply.numbers)), 0, kAnswer);
  }
  std::exception_ptr error;
  try {
    co_await When<decltype(has_ended)>{has_ended};
  } catch (...) {
    error = std::current_exception();
  }
  if (is_answered) {
    answer = std::move(reply.numbers);
    co_return;
  }
  leak_intentionally(std::move(question));  // MPI may still use their memory
  leak_intentionally(std::move(reply));
  if (error) std::rethrow_exception(error);
  answer.front() = 1;
}

/// Also looks whether rank 0 is closing: where messages move on one thread, this rank may have
/// computed since.
bool LaunchOrder::can_ask() {
  if (world_loss_) return false;
  exchange_messages();
  return !asks_no_more_;
}

bool LaunchOrder::is_turn_after(std::uint64_t previous) {
  const Lock guard(lock_);
  return is_given_up_ || last_left_ == previous;
}

void LaunchOrder::leave(const Ticket& ticket) {
  const Lock guard(lock_);
  last_left_ = ticket.number;
}

std::shared_ptr<CUevent_st> LaunchOrder::last_launched() {
  const Lock guard(lock_);
  return last_launched_;
}

void LaunchOrder::set_last_launched(std::shared_ptr<CUevent_st> done) {
  const Lock guard(lock_);
  last_launched_.swap(done);
}

void LaunchOrder::give_up() {
  const Lock guard(lock_);
  is_given_up_ = true;
}

void LaunchOrder::give_up_world(const std::string& loss) {
  const Lock guard(lock_);
  is_given_up_ = true;
  world_loss_ = loss;
}

std::string LaunchOrder::world_loss() {
  const Lock guard(lock_);
  return world_loss_.value_or("");
}

void LaunchOrder::serve() {
  if (!has_questions_) return;
  const auto now = Clock::now();
  if (now < next_look_.load()) return;
  if (!lock_.try_lock()) return;
  const Lock guard(lock_, std::adopt_lock);
  next_look_ = now + (world_->rank() == 0 ? kQuestionInterval : kClosingInterval);
  exchange_messages();
}

Task LaunchOrder::close() {
  if (!has_questions_) co_return;
  const auto tell_at = Clock::now() + kTimeToClose;
  const auto is_closed = [this, tell_at] {
    const Lock guard(lock_);
    if (world_loss_) return true;
    exchange_messages();
    if (world_->rank() > 0) {
      ask_no_more();
      return is_given_up_ || sending_.empty();
    }
    if (closing_.empty() && (is_given_up_ || Clock::now() >= tell_at)) tell_the_others();
    return sending_.empty() && static_cast<int>(have_ended_.size()) + 1 == world_->size();
  };
  co_await When<decltype(is_closed)>{is_closed};
}

bool LaunchOrder::stop_waiting_for(const std::vector<int>& ranks) {
  const Lock guard(lock_);
  if (!has_questions_ || world_->rank() > 0) return false;
  bool might_ask = false;
  for (const int rank : ranks) might_ask |= have_ended_.insert(rank).second;
  return might_ask;
}

std::vector<int> LaunchOrder::awaited() {
  const Lock guard(lock_);
  std::vector<int> ranks;
  if (!has_questions_ || world_loss_ || world_->rank() > 0) return ranks;
  for (int rank = 1; rank < world_->size(); ++rank) {
    if (!have_ended_.contains(rank)) ranks.push_back(rank);
  }
  return ranks;
}

void LaunchOrder::ask_no_more() {
  if (std::exchange(asks_no_more_, true)) return;
  sending_.push_back({{}, world_->send({}, 0, kQuestion)});
}

void LaunchOrder::tell_the_others() {
  for (int rank = 1; rank < world_->size(); ++rank) {
    if (!have_ended_.contains(rank)) closing_.push_back(world_->send({}, rank, kClosing));
  }
}

void LaunchOrder::exchange_messages() {
  while (!sending_.empty() && sending_.front().transfer.ready()) sending_.pop_front();
  if (world_->rank() == 0) {
    answer_questions();
  } else if (!asks_no_more_ && world_->probe(kClosing)) {
    closing_.push_back(world_->receive({}, 0, kClosing));
    ask_no_more();
  }
}

void LaunchOrder::answer_questions() {
  while (has_question()) {
    if (question_->members.empty()) {
      have_ended_.insert(question_->source);
    } else {
      Message& answer = sending_.emplace_back();
      answer.numbers = tickets_.next(question_->members);
      answer.transfer =
          world_->send(std::as_bytes(std::span(answer.numbers)), question_->source, kAnswer);
      in_demand_until_ = Clock::now() + kDemand;
    }
    question_.reset();
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

}  // namespace kolo::runtime
