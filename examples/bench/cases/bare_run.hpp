#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <vector>

#include "bench/cases/case.hpp"
#include "kolo/algorithm.hpp"

namespace bench {

/// Runs one bare algorithm on several tensors, one after another.
class BareRun {
 public:
  /// `common`: the fields that all calls share.
  BareRun(const kolo::Algorithm& algorithm, const kolo::CollectiveCall& common,
          std::chrono::nanoseconds spin);
  BareRun(const BareRun&) = delete;  // calls point into it
  BareRun& operator=(const BareRun&) = delete;

  /// `segments`: every rank's memory as mapped in this process, if it is in a window; else empty.
  void add(const Layout::Place& place, std::byte* memory, const std::vector<std::byte*>& segments);

  void run() const;

 private:
  struct Call {
    kolo::CollectiveCall call;
    std::vector<std::size_t> counts;
    std::vector<std::byte*> peer_buffers;
  };

  kolo::Algorithm algorithm_;
  kolo::CollectiveCall common_;
  std::chrono::nanoseconds spin_;
  std::deque<Call> calls_;
};

}  // namespace bench
