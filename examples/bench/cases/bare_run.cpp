#include "bench/cases/bare_run.hpp"

#include <thread>

#include "runtime/lane/backoff.hpp"

namespace bench {
namespace {

using namespace kolo;

constexpr int kPollsPerClockRead = 32;  // polls before the clock is read

/// Polls with the library's backoff: spins, then yields, then sleeps.
void finish(Task task, std::chrono::nanoseconds spin) {
  runtime::Backoff backoff(spin);
  int looks = 0;
  for (;;) {
    const Progress progress = task.poll();
    if (progress == Progress::Done) return;
    if (progress == Progress::Advanced) {
      backoff.reset();
      looks = 0;
    } else if (++looks % kPollsPerClockRead != 0) {
      continue;
    } else if (const auto pause = backoff.next_pause(); pause.count() > 0) {
      std::this_thread::sleep_for(pause);
    }
  }
}

}  // namespace

BareRun::BareRun(const Algorithm& algorithm, const CollectiveCall& common,
                 std::chrono::nanoseconds spin)
    : algorithm_(algorithm), common_(common), spin_(spin) {}

void BareRun::add(const Layout::Place& place, std::byte* memory,
                  const std::vector<std::byte*>& segments) {
  Call& added = calls_.emplace_back();
  const auto ranks = static_cast<std::size_t>(common_.communicator->size());
  added.counts.assign(ranks, place.count);
  const bool peers_read_inputs = algorithm_.collective == Collective::ReduceScatter ||
                                 algorithm_.collective == Collective::AllToAll;
  for (std::byte* const segment : segments) {
    added.peer_buffers.push_back(segment + (peers_read_inputs ? place.input : place.output));
  }
  added.call = common_;
  added.call.input = memory + place.input;
  added.call.output = memory + place.output;
  added.call.count = place.count;
  added.call.counts = added.counts;
  added.call.send_counts = added.counts;
  added.call.receive_counts = added.counts;
  added.call.peer_buffers = added.peer_buffers;
}

void BareRun::run() const {
  for (const Call& call : calls_) finish(algorithm_.run(call.call), spin_);
}

}  // namespace bench
