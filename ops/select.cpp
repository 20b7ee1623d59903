#include "ops/select.hpp"

#include <string_view>

namespace kolo::ops {
namespace {

constexpr std::string_view kAdasum = "adasum";
constexpr std::string_view kHierarchical = "hierarchical";

bool can_run(const Algorithm& algorithm, const Situation& situation) {
  const bool is_all_reduce = algorithm.collective == Collective::AllReduce;
  const bool is_adasum = situation.op == ReduceOp::Adasum;
  if (is_all_reduce && is_adasum != (algorithm.name == kAdasum)) return false;
  // With other algorithms, each rank would write all of the output, and return while others still
  // write.
  if (situation.shares_output && algorithm.name != kHierarchical) return false;
  switch (algorithm.needs) {
    case Needs::Messages: return true;
    case Needs::Window: return situation.has_window;
    case Needs::PeerBuffers: return situation.has_window && situation.has_peer_buffers;
    case Needs::Nodes: return situation.has_nodes;
  }
  return false;
}

// Below this size a second wait costs more than reading everything.
constexpr std::size_t kSmallWindowBytes = std::size_t{8} << 10;
// Below this size only the number of steps counts, and messages alone take fewer than messages and
// two passes through memory.
constexpr std::size_t kMinBytesForNodes = std::size_t{2} << 10;
// Pieces shorter than this are sent faster than a ring's many steps take.
constexpr std::size_t kShortPieceBytes = std::size_t{16} << 10;

std::string_view choose_in_node(const Situation& situation) {
  if (situation.has_peer_buffers) return "zero_copy";
  if (situation.collective != Collective::AllReduce) return "window";
  const auto others = static_cast<std::size_t>(situation.size - 1);
  return situation.bytes * others <= kSmallWindowBytes ? "window_small" : "window";
}

std::string_view choose_by_messages(const Situation& situation) {
  const bool has_few_ranks = situation.size <= kMaxDirectRanks;
  const bool is_short =
      situation.bytes / static_cast<std::size_t>(situation.size) < kShortPieceBytes;
  switch (situation.collective) {
    case Collective::AllReduce: return has_few_ranks || is_short ? "direct" : "ring";
    case Collective::ReduceScatter:
      if (has_few_ranks) return "direct";
      return is_short ? "halving" : "ring";
    case Collective::AllGather: return has_few_ranks || is_short ? "pairwise" : "ring";
    case Collective::AllToAll: return "pairwise";
    default: return "binomial";
  }
}

/// Empty for collectives that move no data, as no algorithm has an empty name.
std::string_view choose(const Situation& situation) {
  switch (situation.collective) {
    case Collective::AllReduce:
      if (situation.op == ReduceOp::Adasum) return kAdasum;
      break;
    case Collective::ReduceScatter:
    case Collective::AllGather:
    case Collective::Broadcast:
    case Collective::AllToAll: break;
    default: return {};
  }
  if (situation.shares_output) return kHierarchical;
  if (situation.has_window) return choose_in_node(situation);
  const bool has_node_algorithm = situation.collective != Collective::AllToAll;
  if (situation.has_nodes && has_node_algorithm && situation.bytes >= kMinBytesForNodes) {
    return kHierarchical;
  }
  return choose_by_messages(situation);
}

}  // namespace

const Algorithm& select(const Registry& registry, const Situation& situation) {
  const std::string_view preferred = registry.preferred(situation.collective);
  if (!preferred.empty()) {
    const Algorithm& algorithm = registry.find(situation.collective, preferred);
    if (can_run(algorithm, situation)) return algorithm;
  }
  return registry.find(situation.collective, choose(situation));
}

}  // namespace kolo::ops
