#include "insight/meter.hpp"

#include <algorithm>
#include <bit>
#include <numeric>
#include <string>

namespace kolo {

std::uint64_t Metrics::Histogram::count() const {
  return std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
}

}  // namespace kolo

namespace kolo::insight {

void Meter::Histogram::add(Event::Time duration) {
  const auto nanoseconds = static_cast<std::uint64_t>(std::max<std::int64_t>(duration.count(), 1));
  const auto bucket = static_cast<std::size_t>(std::bit_width((nanoseconds - 1) / 1000));
  counts_[std::min(bucket, counts_.size() - 1)].add(1);
  sum_.add(duration);
}

void Meter::Histogram::add_to(Metrics::Histogram& histogram) const {
  for (std::size_t i = 0; i < counts_.size(); ++i) histogram.counts[i] += counts_[i].value();
  histogram.sum += sum_.seconds();
}

void Meter::restart() {
  for (std::size_t i = 0; i < kPaths.size(); ++i) bytes_before_[i] = bytes_[i].value();
}

void Meter::set(const Metrics::Bytes& bytes) {
  for (std::size_t i = 0; i < kPaths.size(); ++i)
    bytes_[i].set(bytes_before_[i] + bytes.*kPaths[i]);
}

void Meter::count(const Event& operation) {
  Operations& operations = operations_[operation.collective];
  operations.ended.add(1);
  if (operation.failure != 0) operations.failed.add(1);
  const bool was_agreed = operation.agreed.count() > 0;
  const bool was_started = operation.started.count() > 0;
  if (was_agreed) agree_.add(operation.agreed - operation.begin);
  if (was_agreed && was_started) queue_.add(operation.started - operation.agreed);
  if (was_started) move_.add(operation.time - operation.started);
  if (operation.last_rank >= 0 && operation.last_rank != rank_) {
    Peer& peer = peers_[static_cast<std::size_t>(operation.last_rank)];
    const Event::Time since = std::max(operation.begin, peer.late_until);
    if (operation.last_at > since) {
      peer.late.add(operation.last_at - since);
      peer.late_until = operation.last_at;
    }
  }
  // The operations of a batch have waited together.
  if (operation.waited.count() > 0 && operation.started >= waits_until_) {
    waits_until_ = operation.time;
    const int peer = operation.waited_for;
    (peer >= 0 ? peers_[static_cast<std::size_t>(peer)].data_wait : unknown_data_wait_)
        .add(operation.waited);
  }
}

void Meter::add_to(Metrics& metrics) const {
  for (std::size_t i = 0; i < operations_.size(); ++i) {
    const std::uint64_t ended = operations_[i].ended.value();
    if (ended == 0) continue;
    auto& operations = metrics.operations[std::string(name_of(static_cast<Collective>(i)))];
    operations.ended += ended;
    operations.failed += operations_[i].failed.value();
  }
  for (std::size_t i = 0; i < kPaths.size(); ++i) metrics.bytes.*kPaths[i] += bytes_[i].value();
  agree_.add_to(metrics.agree);
  queue_.add_to(metrics.queue);
  move_.add_to(metrics.move);
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    metrics.late_seconds[i] += peers_[i].late.seconds();
    metrics.data_wait_seconds[i] += peers_[i].data_wait.seconds();
  }
  metrics.unknown_data_wait_seconds += unknown_data_wait_.seconds();
  metrics.stalls += stalls_.value();
  if (const std::uint64_t since = open_since_.value(); since > 0) {
    const std::chrono::duration<double> time = time_of(Clock::now()) - Event::Time{since};
    const std::uint64_t peer = open_peer_.value();
    double& longest =
        peer > 0 ? metrics.open_wait_seconds[peer - 1] : metrics.unknown_open_wait_seconds;
    longest = std::max(longest, time.count());
  }
}

}  // namespace kolo::insight
