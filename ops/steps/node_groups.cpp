#include "ops/steps/node_groups.hpp"

#include <algorithm>

#include "kolo/error.hpp"

namespace kolo::ops {
namespace {

// The upper half of the algorithms' tags, so that messages among peers cannot match any others.
constexpr int kPeerTagCount = kAlgorithmTagCount / 2;

const Nodes& nodes_of(const CollectiveCall& call) {
  if (call.nodes != nullptr && call.nodes->is_homogeneous && call.nodes->window != nullptr) {
    return *call.nodes;
  }
  throw InvalidArgument(
      "collective by nodes: it needs nodes with the same number of ranks each, which share memory; "
      "choose another algorithm");
}

}  // namespace

NodeGroups::NodeGroups(const CollectiveCall& call)
    : node_of_rank_(nodes_of(call).node_of_rank), window_(call.nodes->window) {
  members_.resize(static_cast<std::size_t>(*std::ranges::max_element(node_of_rank_)) + 1);
  for (int rank = 0; rank < call.communicator->size(); ++rank) {
    members_[static_cast<std::size_t>(node_of(rank))].push_back(rank);
  }
  place_ = place_of(call.communicator->rank());
  peer_communicator_.emplace(*call.communicator, peers(), kAlgorithmTagCount - kPeerTagCount,
                             kPeerTagCount);
}

int NodeGroups::place_of(int rank) const {
  const std::vector<int>& node = members(node_of(rank));
  return static_cast<int>(std::ranges::find(node, rank) - node.begin());
}

std::vector<int> NodeGroups::peers() const {
  std::vector<int> peers;
  for (const std::vector<int>& node : members_) {
    peers.push_back(node[static_cast<std::size_t>(place_)]);
  }
  return peers;
}

CollectiveCall NodeGroups::inside(CollectiveCall call) const {
  call.window = window_;
  return call;
}

CollectiveCall NodeGroups::across(CollectiveCall call) {
  call.communicator = &*peer_communicator_;
  return call;
}

}  // namespace kolo::ops
