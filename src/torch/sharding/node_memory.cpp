#include "torch/sharding/node_memory.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/shared_memory.hpp"
#include "kolo/runtime.hpp"
#include "runtime/api/collectives.hpp"
#include "runtime/lane/lane.hpp"
#include "torch/tensors/agreement.hpp"

namespace kolo::tensors {
namespace {

bool can_share(const ProcessSet& set) {
  return set.number() == 0 && set.runtime().local_size() > 1 && set.lane()->can_share_in_nodes();
}

/// Joins the segments of the node's ranks, so that each has its own pages. Null if the system
/// gives none.
std::shared_ptr<comm::JoinedMapping> join_segments(std::size_t segment_bytes,
                                                   const OperationOptions& options) {
  const std::shared_ptr<SharedWindow> window = runtime::make_node_window(segment_bytes, options);
  if (window == nullptr) return nullptr;
  std::vector<comm::JoinedMapping::Part> parts;
  for (int rank = 0; rank < window->size(); ++rank) {
    parts.push_back({window->segment(rank).data(), segment_bytes, parts.size() * segment_bytes});
  }
  return std::make_shared<comm::JoinedMapping>(parts.size() * segment_bytes, parts);
}

bool holds_on_all(bool holds, const OperationOptions& options) {
  std::int64_t value = holds ? 1 : 0;
  const TensorView view{&value, DType::Int64, {1}, Device{}};
  allreduce(
      view, view,
      {.op = ReduceOp::Min, .name = options.name + ".all", .process_set = options.process_set});
  return value == 1;
}

}  // namespace

std::optional<SharedBuffer> make_node_memory(std::size_t size_bytes,
                                             const OperationOptions& options) {
  ProcessSet& world = *options.process_set;
  if (!can_share(world)) return std::nullopt;
  const auto sharers = static_cast<std::size_t>(world.runtime().local_size());
  const std::size_t pages = size_bytes / sharers / comm::page_bytes() + 1;
  const std::size_t segment_bytes = pages * comm::page_bytes();
  std::shared_ptr<comm::JoinedMapping> memory;
  run_on_all(world, options.name + ".joined", "DistributedOptimizer", "sharing memory in its node",
             [&] { memory = join_segments(segment_bytes, options); });
  if (!holds_on_all(memory != nullptr, options)) return std::nullopt;
  const TensorView extent{
      memory->data(), DType::UInt8, {static_cast<std::int64_t>(sharers * segment_bytes)}, Device{}};
  return SharedBuffer(options.name, extent, memory);
}

}  // namespace kolo::tensors
