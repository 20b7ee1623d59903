#include "ops/steps/nodes.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "kolo/error.hpp"
#include "ops/kernels/pieces.hpp"

namespace kolo::ops {
namespace {

constexpr std::size_t kPieceUnit = 64 / sizeof(float);

}  // namespace

NodePlaces::NodePlaces(std::span<const int> node_of_rank, int rank)
    : members_(static_cast<std::size_t>(*std::ranges::max_element(node_of_rank)) + 1),
      node_(node_of_rank[static_cast<std::size_t>(rank)]) {
  for (std::size_t i = 0; i < node_of_rank.size(); ++i) {
    members_[static_cast<std::size_t>(node_of_rank[i])].push_back(static_cast<int>(i));
  }
  place_ = static_cast<int>(std::ranges::find(neighbours(), rank) - neighbours().begin());
  pieces_ = static_cast<int>(std::ranges::min(members_, {}, &std::vector<int>::size).size());
}

std::vector<int> NodePlaces::peers() const {
  std::vector<int> peers;
  for (const std::vector<int>& node : members_) {
    peers.push_back(node[static_cast<std::size_t>(place_)]);
  }
  return peers;
}

std::vector<Range> NodePlaces::pieces(std::size_t count) const {
  std::vector<Range> pieces = pieces_of(count, pieces_, kPieceUnit);
  pieces.resize(neighbours().size(), {count, 0});
  return pieces;
}

SubCommunicator::SubCommunicator(Communicator& parent, std::vector<int> ranks, int first_tag,
                                 int tag_count)
    : parent_(parent), ranks_(std::move(ranks)), first_tag_(first_tag), tag_count_(tag_count) {
  const auto self = std::find(ranks_.begin(), ranks_.end(), parent.rank());
  if (self == ranks_.end()) {
    throw InvalidArgument("sub-communicator: rank " + std::to_string(parent.rank()) +
                          " is none of its members");
  }
  rank_ = static_cast<int>(self - ranks_.begin());
}

int SubCommunicator::parent_rank(int rank) const {
  if (rank >= 0 && rank < size()) return ranks_[static_cast<std::size_t>(rank)];
  throw InvalidArgument("sub-communicator: rank " + std::to_string(rank) +
                        " is out of range, it has " + std::to_string(size()));
}

int SubCommunicator::parent_tag(int tag) const {
  if (tag >= 0 && tag < tag_count_) return first_tag_ + tag;
  throw InvalidArgument("sub-communicator: tag " + std::to_string(tag) +
                        " is out of range, it has " + std::to_string(tag_count_));
}

Transfer SubCommunicator::send(std::span<const std::byte> data, int destination, int tag) {
  Transfer transfer = parent_.send(data, parent_rank(destination), parent_tag(tag));
  bytes_sent_ += data.size();
  return transfer;
}

Transfer SubCommunicator::receive(std::span<std::byte> data, int source, int tag) {
  return parent_.receive(data, parent_rank(source), parent_tag(tag));
}

std::optional<Communicator::Envelope> SubCommunicator::probe(int tag) {
  const std::optional<Envelope> envelope = parent_.probe(parent_tag(tag));
  if (!envelope) return std::nullopt;
  const auto source = std::find(ranks_.begin(), ranks_.end(), envelope->source);
  return Envelope{static_cast<int>(source - ranks_.begin()), envelope->size_bytes};
}

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
