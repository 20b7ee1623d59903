#include "runtime/control/common_clock.hpp"

#include <random>
#include <span>

namespace kolo::runtime {
namespace {

using insight::Clock;
using Span = insight::Event::Time;

constexpr int kTag = Communicator::kTagCount - 2;
constexpr int kRoundTrips = 8;  // the first one waits until rank 0 has served the ranks below

struct Answer {
  std::int64_t time = 0;
  std::uint64_t job = 0;
};

int round_trips(const std::vector<int>& node_of_rank, int rank) {
  return node_of_rank[static_cast<std::size_t>(rank)] == node_of_rank.front() ? 1 : kRoundTrips;
}

}  // namespace

Task agree_on_clock(Communicator& communicator, const std::vector<int>& node_of_rank,
                    CommonClock& clock) {
  std::byte question{};
  if (communicator.rank() == 0) {
    std::random_device random;
    const Answer answer{0, std::uint64_t{random()} << 16 | (random() & 0xFFFF)};
    clock = {Span{0}, answer.job};
    for (int rank = 1; rank < communicator.size(); ++rank) {
      for (int i = round_trips(node_of_rank, rank); i > 0; --i) {
        co_await communicator.receive({&question, 1}, rank, kTag);
        const Answer now{insight::time_of(Clock::now()).count(), answer.job};
        co_await communicator.send(std::as_bytes(std::span(&now, 1)), rank, kTag);
      }
    }
    co_return;
  }
  const int count = round_trips(node_of_rank, communicator.rank());
  Span shortest = Span::max();
  for (int i = count; i > 0; --i) {
    Answer answer;
    const Span sent = insight::time_of(Clock::now());
    co_await communicator.send({&question, 1}, 0, kTag);
    co_await communicator.receive(std::as_writable_bytes(std::span(&answer, 1)), 0, kTag);
    const Span round_trip = insight::time_of(Clock::now()) - sent;
    clock.job = answer.job;
    if (count == 1 || round_trip >= shortest) continue;
    shortest = round_trip;
    clock.to_world_clock = Span{answer.time} - sent - round_trip / 2;
  }
}

}  // namespace kolo::runtime
