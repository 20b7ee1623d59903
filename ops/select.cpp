#include "ops/select.hpp"

namespace kolo::ops {
namespace {

bool can_run(const Algorithm& algorithm, const Situation& situation) {
  switch (algorithm.needs) {
    case Needs::Messages: return true;
    case Needs::NativeCollectives: return situation.has_native;
    case Needs::Window: return situation.has_window;
    case Needs::PeerBuffers: return situation.has_window && situation.has_peer_buffers;
  }
  return false;
}

// Below it a second wait costs more than reading everything.
constexpr std::size_t kSmallWindowBytes = std::size_t{2} << 10;
// Direct exchange sends as little as a ring in fewer steps and keeps the rank order, until so many
// pairs talk at once that they are in each other's way.
constexpr int kMostDirectRanks = 16;
// Pieces shorter than this are sent faster than a ring's many steps take.
constexpr std::size_t kShortPieceBytes = std::size_t{16} << 10;

std::string_view choose_allreduce(const Situation& situation) {
  const auto ranks = static_cast<std::size_t>(situation.size);
  if (situation.has_window) {
    if (situation.has_peer_buffers) return "zero_copy";
    const bool is_small = situation.bytes * (ranks - 1) <= kSmallWindowBytes;
    return is_small ? "window_small" : "window";
  }
  const bool is_direct =
      situation.size <= kMostDirectRanks || situation.bytes / ranks < kShortPieceBytes;
  return is_direct ? "direct" : "ring";
}

std::string_view choose(const Situation& situation) {
  switch (situation.collective) {
    case Collective::AllReduce: return choose_allreduce(situation);
    case Collective::AllGather: return "ring";
    case Collective::Broadcast: return "binomial";
    case Collective::ShareMemory: break;
  }
  return {};  // moves no data: no algorithm has an empty name
}

}  // namespace

const Algorithm& select(const Registry& registry, const Situation& situation,
                        std::string_view wanted) {
  if (!wanted.empty()) {
    const Algorithm& algorithm = registry.find(situation.collective, wanted);
    if (can_run(algorithm, situation)) return algorithm;
  }
  return registry.find(situation.collective, choose(situation));
}

}  // namespace kolo::ops
