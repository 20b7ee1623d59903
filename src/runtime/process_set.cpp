#include "kolo/process_set.hpp"

#include <utility>

#include "runtime/lane.hpp"

namespace kolo {

ProcessSet::ProcessSet(Runtime& runtime, std::shared_ptr<runtime::Lane> lane)
    : runtime_(runtime), lane_(std::move(lane)) {}

int ProcessSet::rank() const { return lane_->rank(); }
int ProcessSet::size() const { return lane_->size(); }
const std::vector<int>& ProcessSet::ranks() const { return lane_->world_ranks(); }
const std::string& ProcessSet::name() const { return lane_->name(); }
std::string ProcessSet::next_name(std::string_view kind) const { return lane_->next_name(kind); }

ProcessSet::Metrics ProcessSet::metrics() const {
  const runtime::Lane::Metrics lane = lane_->metrics();
  Metrics metrics;
  metrics.exchanges = lane.protocol.exchanges;
  metrics.fruitless_exchanges = lane.protocol.fruitless_exchanges;
  metrics.asks = lane.protocol.asks;
  metrics.negotiations = lane.protocol.negotiations;
  metrics.header_bytes = lane.header_bytes;
  metrics.bytes_sent = lane.bytes_sent;
  metrics.bytes_packed = lane.bytes_packed;
  return metrics;
}

}  // namespace kolo
