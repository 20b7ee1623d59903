#include "shard/peak.hpp"

#include <algorithm>
#include <chrono>

#include "shard/process_memory.hpp"

namespace shard {
namespace {

std::size_t own_segment_bytes() {
  std::size_t sum = 0;
  for (const auto& [begin, size] : own_segments()) sum += size;
  return sum;
}

}  // namespace

PeakWatch::PeakWatch(Allocations& allocations)
    : allocations_(allocations), segment_bytes_(own_segment_bytes()) {
  allocations_.take_peak_bytes();  // of the time before
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

void PeakWatch::look() {
  const std::size_t before = segment_bytes_;
  segment_bytes_ = own_segment_bytes();
  peak_bytes_ =
      std::max(peak_bytes_, std::max(before, segment_bytes_) + allocations_.take_peak_bytes());
}

}  // namespace shard
