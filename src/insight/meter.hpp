#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "insight/recorder.hpp"
#include "kolo/algorithm.hpp"
#include "kolo/metrics.hpp"

namespace kolo::insight {

/// Counts what one engine does. It alone counts, one thread at a time, so that counting is a plain
/// addition; any thread reads, without waiting for it.
class Meter {
 public:
  explicit Meter(const Origin& origin)
      : rank_(origin.rank), peers_(static_cast<std::size_t>(origin.size)) {}
  Meter(const Meter&) = delete;  // read by other threads
  Meter& operator=(const Meter&) = delete;

  /// A new engine counts from now on.
  void restart();
  /// @param operation of the kind Ended
  void count(const Event& operation);
  void count_stall() { stalls_.add(1); }
  /// The operation that has waited longest, and for which world rank; -1: unknown. A `since` of 0:
  /// none waits.
  void set_open_wait(Event::Time since, int peer) {
    open_since_.set(static_cast<std::uint64_t>(since.count()));
    open_peer_.set(static_cast<std::uint64_t>(std::int64_t{peer} + 1));
  }
  /// The operation that began then has ended.
  void end_open_wait(Event::Time since) {
    if (open_since_.value() == static_cast<std::uint64_t>(since.count())) open_since_.set(0);
  }
  /// @param bytes that the engine has moved since restart()
  void set(const Metrics::Bytes& bytes);

  void add_to(Metrics& metrics) const;

 private:
  class Counter {
   public:
    std::uint64_t value() const { return value_.load(std::memory_order_relaxed); }
    double seconds() const { return static_cast<double>(value()) * 1e-9; }
    void set(std::uint64_t value) { value_.store(value, std::memory_order_relaxed); }
    void add(std::uint64_t more) { set(value() + more); }
    void add(Event::Time more) { add(static_cast<std::uint64_t>(more.count())); }

   private:
    std::atomic<std::uint64_t> value_{0};
  };
  class Histogram {
   public:
    void add(Event::Time duration);
    void add_to(Metrics::Histogram& histogram) const;

   private:
    std::array<Counter, Metrics::Histogram::kBounds + 1> counts_;
    Counter sum_;
  };
  struct Operations {
    Counter ended;
    Counter failed;
  };
  struct Peer {
    Counter late;
    Counter data_wait;
    Event::Time late_until{};  // is counted; the engine's
  };
  static constexpr std::size_t kCollectives = static_cast<std::size_t>(Collective::Receive) + 1;
  static constexpr std::array kPaths{&Metrics::Bytes::shared_memory, &Metrics::Bytes::messages,
                                     &Metrics::Bytes::gpus, &Metrics::Bytes::packed,
                                     &Metrics::Bytes::headers};

  const int rank_;
  std::array<Operations, kCollectives> operations_;
  std::array<Counter, kPaths.size()> bytes_;
  std::array<std::uint64_t, kPaths.size()> bytes_before_{};  // of earlier engines
  Histogram agree_;
  Histogram queue_;
  Histogram move_;
  std::vector<Peer> peers_;
  Counter unknown_data_wait_;
  Event::Time waits_until_{};  // are counted; the engine's
  Counter stalls_;
  Counter open_since_;
  Counter open_peer_;  // + 1
};

}  // namespace kolo::insight
