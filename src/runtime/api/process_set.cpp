#include "kolo/process_set.hpp"

#include <utility>

#include "kolo/error.hpp"
#include "kolo/runtime.hpp"
#include "runtime/api/collectives.hpp"
#include "runtime/lane/lane.hpp"
#include "runtime/protocol/set_name.hpp"

namespace kolo {

ProcessSet::ProcessSet(Runtime& runtime, int number, std::vector<int> ranks, Matching matching,
                       std::shared_ptr<runtime::Lane> lane)
    : runtime_(&runtime),
      number_(number),
      ranks_(std::move(ranks)),
      matching_(matching),
      lane_(std::move(lane)) {}

int ProcessSet::rank() const { return included() ? lane_->rank() : -1; }
std::string ProcessSet::name() const { return runtime::name_of_set(number_, ranks_); }

Runtime& ProcessSet::runtime() const {
  Runtime* const runtime = runtime_;
  if (runtime != nullptr) return *runtime;
  throw ShutdownError("process set " + name() +
                      ": it has been removed, or its Runtime destroyed on this rank. Keep both as "
                      "long as anything communicates.");
}

std::string ProcessSet::next_name(std::string_view kind) const { return lane()->next_name(kind); }

std::string ProcessSet::next_prefix(std::string_view kind) const {
  return lane()->next_prefix(kind);
}

const std::shared_ptr<runtime::Lane>& ProcessSet::lane() const {
  if (!included()) {
    throw InvalidArgument("rank " + std::to_string(runtime().rank()) +
                          " is not a member of process set " + name() +
                          ". Call the operation on members only.");
  }
  return lane_;
}

ProcessSet::Metrics ProcessSet::metrics() const {
  const runtime::Lane::Metrics lane = this->lane()->metrics();
  Metrics metrics;
  metrics.exchanges = lane.protocol.exchanges;
  metrics.fruitless_exchanges = lane.protocol.fruitless_exchanges;
  metrics.wake_up_requests = lane.protocol.wake_up_requests;
  metrics.negotiations = lane.protocol.negotiations;
  metrics.header_bytes = lane.header_bytes;
  metrics.bytes_sent = lane.bytes_sent;
  metrics.bytes_packed = lane.bytes_packed;
  metrics.gpu_seconds = lane.gpu_seconds;
  return metrics;
}

ProcessSet& member_set(ProcessSet* set) {
  ProcessSet& member = runtime::set_or_world(set);
  static_cast<void>(member.lane());  // throws if this rank is not a member
  return member;
}

}  // namespace kolo
