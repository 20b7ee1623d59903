#include "shard/peak.hpp"

#include <algorithm>
#include <chrono>

#include "kolo/runtime.hpp"
#include "shard/process_memory.hpp"

namespace shard {

PeakWatch::PeakWatch(Allocations& allocations)
    : allocations_(allocations), segment_bytes_(own_share()) {
  allocations_.take_peak_bytes();  // discards the previous peak
  thread_ = std::jthread([this](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      look();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    look();
  });
}

std::size_t PeakWatch::stop() {
  thread_.request_stop();
  thread_.join();
  return peak_bytes_;
}

std::size_t PeakWatch::own_share() {
  return shared_segment_bytes() / static_cast<std::size_t>(kolo::Runtime::current().local_size());
}

void PeakWatch::look() {
  const std::size_t before = segment_bytes_;
  segment_bytes_ = own_share();
  peak_bytes_ =
      std::max(peak_bytes_, std::max(before, segment_bytes_) + allocations_.take_peak_bytes());
}

}  // namespace shard
